from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from starlette.routing import Router
from starlette.types import Message

from inferd.api.disconnect import SCOPE_KEY
from inferd.api.middleware import Envelope
from inferd.api.node_admin import NodeAdmin
from inferd.api.node_routes import NodeApi
from inferd.errors import ConfigError, NotFound
from tests.unit.api.client_end import ClientEnd, with_clients


class ScriptedNode(NodeAdmin):
    """Answers without a node behind it; `open_streams` counts outputs that are being read."""

    def __init__(self) -> None:
        self.open_streams = 0

    def status(self) -> dict[str, Any]:
        return {"object": "status"}

    async def reload(self) -> dict[str, Any]:
        raise ConfigError(["inferd.toml:1: a", "inferd.toml:2: b"])

    def restart_worker(self, worker_id: str) -> dict[str, Any]:
        return {"worker": worker_id}

    def worker_output(self, worker_id: str, *, lines: int, follow_it: bool) -> AsyncIterator[str]:
        if worker_id != "chat-1-1":
            raise NotFound("There is no such worker.")
        return self._output(lines, follow_it)

    async def _output(self, lines: int, follow_it: bool) -> AsyncIterator[str]:
        self.open_streams += 1
        try:
            for number in range(lines):
                yield f"é \udcff {number}"
            if follow_it:
                await asyncio.Event().wait()
        finally:
            self.open_streams -= 1


def app(node: ScriptedNode) -> Envelope:
    router = Router(NodeApi(node).routes(), redirect_slashes=False)
    return Envelope(router, count=lambda *_: None, operator=True)


def client(node: ScriptedNode) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(with_clients(app(node)))
    return httpx2.AsyncClient(transport=transport, base_url="http://admin/admin/v1")


async def test_output_is_text_line_by_line() -> None:
    async with client(ScriptedNode()) as http:
        answer = await http.get("/workers/chat-1-1/output?lines=1000")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        lines = answer.text.splitlines()
        assert (len(lines), lines[0], lines[-1]) == (1_000, "é \\udcff 0", "é \\udcff 999")
        assert len((await http.get("/workers/chat-1-1/output")).text.splitlines()) == 100
        assert (await http.get("/workers/chat-1-1/output?lines=0")).text == ""


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("lines=x", "lines"),
        ("lines=-1", "lines"),
        ("lines=100001", "lines"),
        ("lines=" + "9" * 5_000, "lines"),
        ("lines=\u0663", "lines"),
        ("follow=yes", "follow"),
    ],
)
async def test_a_wrong_query_is_refused_by_name(query: str, param: str) -> None:
    async with client(ScriptedNode()) as http:
        answer = await http.get(f"/workers/chat-1-1/output?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param


async def test_an_unknown_worker_is_a_404_before_anything_is_sent() -> None:
    async with client(ScriptedNode()) as http:
        answer = await http.get("/workers/nobody/output?follow=1")
        assert answer.status_code == 404
        assert answer.json()["error"]["message"] == "There is no such worker."


async def test_a_follower_that_leaves_ends_its_stream() -> None:
    node = ScriptedNode()
    sent: list[Message] = []
    reader = ClientEnd()

    async def receive() -> Message:
        raise AssertionError("there is no body to read")

    async def send(message: Message) -> None:
        sent.append(message)
        if message.get("body", b"").endswith(b" 1\n"):
            assert node.open_streams == 1
            asyncio.get_running_loop().call_soon(reader.abort)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/admin/v1/workers/chat-1-1/output",
        "query_string": b"lines=2&follow=1",
        "headers": [],
        SCOPE_KEY: reader,
    }
    await app(node)(scope, receive, send)
    await asyncio.sleep(0)
    assert node.open_streams == 0
    assert sent[-1]["more_body"] is True, "the end of the body was not pretended"


async def test_a_refused_reload_tells_an_admin_every_problem() -> None:
    async with client(ScriptedNode()) as http:
        answer = await http.post("/reload")
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "invalid_config"
        assert answer.json()["error"]["message"].splitlines() == [
            "inferd.toml:1: a",
            "inferd.toml:2: b",
        ]
        assert (await http.post("/reload", json={"force": True})).status_code == 400
        assert (await http.post("/workers/a%2Db/restart")).json() == {"worker": "a-b"}
        assert (await http.get("/status")).json() == {"object": "status"}
