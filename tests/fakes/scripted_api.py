"""A chat API that answers as a test says, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

Chunk = dict[str, Any]


@dataclass(slots=True)
class Answer:
    """One answer: a refusal when `status` says so, else chunks; `hangs` before its end."""

    chunks: list[Chunk] = field(default_factory=list)
    status: int = 200
    error: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    done: bool = True


def text(*pieces: str, finish_reason: str = "stop", **more: Any) -> list[Chunk]:
    """The chunks of an answer in these pieces."""
    chunks: list[Chunk] = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
    chunks.append({"choices": [{"delta": {}, "finish_reason": finish_reason}]})
    return [*chunks, {"choices": [], "usage": {"completion_tokens": len(pieces)}}, more]


class ScriptedApi:
    """`answers` are given in turn; `asked` are the bodies that came, `states` the model's."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.states: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.left = asyncio.Event()
        self.base_url = ""

    async def models(self, http: web.Request) -> web.Response:
        state = self.states.pop(0) if self.states else "ready"
        model = {"id": http.match_info.get("name", "scripted"), "state": state}
        return web.json_response(model if "name" in http.match_info else {"data": [model]})

    async def chat(self, http: web.Request) -> web.StreamResponse:
        self.asked.append(await http.json())
        answer = self.answers.pop(0)
        if answer.status != 200:
            body = {"error": answer.error}
            return web.json_response(body, status=answer.status, headers=answer.headers)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(http)
        for chunk in answer.chunks:
            await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
        if answer.hangs:
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        if answer.done:
            await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def scripted_api() -> AsyncIterator[ScriptedApi]:
    api = ScriptedApi()
    app = web.Application()
    app.router.add_get("/v1/models", api.models)
    app.router.add_get("/v1/models/{name}", api.models)
    app.router.add_post("/v1/chat/completions", api.chat)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        api.base_url = f"http://{host}:{port}/v1"
        yield api
    finally:
        await runner.cleanup()
