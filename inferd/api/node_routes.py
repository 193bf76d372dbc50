"""The node's part of the admin API: status, reload, and each worker's output and restart.

Owns nothing; the handlers without HTTP are in `node_admin`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from inferd.api.admin import body_fields, json_route
from inferd.api.disconnect import WhileClientWaits, client_of
from inferd.api.fields import not_supported_value, number, shown
from inferd.api.node_admin import NodeAdmin
from inferd.errors import InvalidField

LINES_DEFAULT: Final = 100
LINES_MAX: Final = 100_000
DRAIN_S_MAX: Final = 86_400.0
LINES_IN_A_ROW: Final = 64
"""Sent before other tasks get their turn."""

_NUMBER: Final = re.compile(r"[0-9]{1,9}")

Answer = dict[str, Any]

_DRAIN: Final = {"drain_s": number(0, DRAIN_S_MAX)}


class NodeApi:
    """The handlers. `routes` is the table of paths."""

    def __init__(self, node: NodeAdmin) -> None:
        self._node = node

    def routes(self) -> list[Route]:
        worker = "/admin/v1/workers/{id}"
        return [
            json_route("GET", "/admin/v1/status", self._status),
            json_route("GET", "/admin/v1/pools", self._pools),
            json_route("POST", "/admin/v1/reload", self._reload),
            json_route("GET", "/admin/v1/gpus", self._gpus),
            json_route("POST", "/admin/v1/gpus/{gpu}/lift", self._lift),
            json_route("GET", "/admin/v1/workers", self._workers),
            json_route("GET", worker, self._worker),
            json_route("POST", f"{worker}/drain", self._drain),
            json_route("POST", f"{worker}/restart", self._restart),
            Route(f"{worker}/output", self._output, methods=["GET"]),
        ]

    async def _status(self, _: Request) -> Answer:
        return self._node.status()

    async def _pools(self, _: Request) -> Answer:
        return self._node.pools()

    async def _reload(self, http: Request) -> Answer:
        await body_fields(http, {})
        return await self._node.reload()

    async def _gpus(self, _: Request) -> Answer:
        return self._node.gpus.list()

    async def _lift(self, http: Request) -> Answer:
        await body_fields(http, {})
        return self._node.gpus.lift(http.path_params["gpu"])

    async def _workers(self, _: Request) -> Answer:
        return self._node.workers.list()

    async def _worker(self, http: Request) -> Answer:
        return self._node.workers.show(http.path_params["id"])

    async def _drain(self, http: Request) -> Answer:
        fields = await body_fields(http, _DRAIN)
        return self._node.workers.drain(http.path_params["id"], **fields)

    async def _restart(self, http: Request) -> Answer:
        await body_fields(http, {})
        return self._node.restart_worker(http.path_params["id"])

    async def _output(self, http: Request) -> Response:
        lines = self._node.worker_output(
            http.path_params["id"], lines=_lines(http), follow_it=_follow(http)
        )
        return _Lines(lines)


class _Lines(Response):
    """Lines of text, each sent when it is there; ends when they do or when the client leaves."""

    media_type = "text/plain"

    def __init__(self, lines: AsyncIterator[str]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        del receive
        with WhileClientWaits(client_of(scope)):
            await send(headers)
            sent = 0
            async for line in self._lines:
                # A broken surrogate of an odd file name must not end the stream.
                data = f"{line}\n".encode("utf-8", "backslashreplace")
                await send({"type": "http.response.body", "body": data, "more_body": True})
                sent += 1
                if sent % LINES_IN_A_ROW == 0:
                    await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b""})


def _lines(http: Request) -> int:
    text = http.query_params.get("lines", str(LINES_DEFAULT))
    if not _NUMBER.fullmatch(text) or int(text) > LINES_MAX:
        raise InvalidField(
            f"Invalid 'lines': got '{shown(text)}'. It is a number from 0 to {LINES_MAX}.",
            param="lines",
        )
    return int(text)


def _follow(http: Request) -> bool:
    text = http.query_params.get("follow", "0")
    if text not in {"0", "1"}:
        raise not_supported_value("follow", text, ("0", "1"))
    return text == "1"
