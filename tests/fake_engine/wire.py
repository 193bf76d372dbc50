"""An HTTP/1.1 server on httptools, small enough that every byte on the wire is ours to break.

Answers look like uvicorn's on h11: lower-case names, `date`, `server`, one chunk a write. An
`Exchange` is one request with its answer; it hears at once when its client goes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import httptools
import orjson

Handler = Callable[["Exchange"], Awaitable[None]]
JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"


def _head(status: int, headers: list[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"date: {formatdate(usegmt=True)}", "server: uvicorn"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Exchange:
    """One request and its answer."""

    def __init__(self, connection: Connection, method: str, target: str) -> None:
        self._connection = connection
        self.method = method
        split = urlsplit(target)
        self.path = split.path
        self.query = parse_qs(split.query)
        self.headers: dict[str, str] = {}
        self.body = b""
        self.status: int | None = None
        self.streaming = False
        self.complete = False
        self.gone = asyncio.Event()
        self.on_gone: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None

    @property
    def writable(self) -> bool:
        """False while the client reads slower than we write."""
        return self._connection.writable

    @property
    def transport(self) -> asyncio.Transport:
        return self._connection.transport

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: str | None = JSON,
        *,
        vary: bool = True,
        more: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Send a whole answer."""
        headers = [*more, ("content-length", str(len(body)))]
        if content_type is not None:
            headers.append(("content-type", content_type))
        if vary:
            headers.append(("vary", "Origin"))
        self.status = status
        self.write_raw(_head(status, [*headers, *self._connection.closing_header()]) + body)
        self.finish()

    def respond_json(self, status: int, value: Any) -> None:
        self.respond(status, orjson.dumps(value))

    def begin_stream(self, content_type: str = SSE, *, spelled: str = "content-type") -> None:
        """Send the head of a chunked answer."""
        self.status = HTTPStatus.OK
        self.streaming = True
        headers = [(spelled, content_type), ("vary", "Origin"), ("Transfer-Encoding", "chunked")]
        self.write_raw(_head(HTTPStatus.OK, [*headers, *self._connection.closing_header()]))

    def write(self, data: bytes) -> None:
        """One chunk of a streamed answer."""
        self.write_raw(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self.write_raw(b"0\r\n\r\n")
        self.finish()

    def write_raw(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def finish(self) -> None:
        if not self.complete:
            self.complete = True
            self._connection.exchange_done(self)

    def close(self) -> None:
        """End the connection after what is already written."""
        self.complete = True
        self.transport.close()

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        self.complete = True
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def client_left(self) -> None:
        self.gone.set()
        if self.on_gone is not None:
            self.on_gone()


class Connection(asyncio.Protocol):
    """One client connection; requests on it are answered one after another."""

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._current: Exchange | None = None
        self._backlog: list[Exchange] = []
        self._keep_alive = True
        self._idle_timer: asyncio.TimerHandle | None = None
        self.writable = True

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self._current is not None and self._current.on_writable is not None:
            self._current.on_writable()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._stop_idling()
        if self._current is not None:
            self._current.client_left()
        for exchange in self._backlog:
            exchange.client_left()

    def _stop_idling(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def data_received(self, data: bytes) -> None:
        self._stop_idling()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            body = b"Invalid HTTP request received."
            head = [("content-type", "text/plain; charset=utf-8"), ("connection", "close")]
            self.transport.write(_head(HTTPStatus.BAD_REQUEST, head) + body)
            self.transport.close()

    def on_message_begin(self) -> None:
        self._target, self._headers, self._body = b"", {}, []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        self._keep_alive = self._parser.should_keep_alive()
        method = self._parser.get_method().decode()
        exchange = Exchange(self, method, self._target.decode("latin-1"))
        exchange.headers = self._headers
        exchange.body = b"".join(self._body)
        self._backlog.append(exchange)
        if self._current is None:
            self._next()

    def closing_header(self) -> list[tuple[str, str]]:
        return [] if self._keep_alive else [("Connection", "close")]

    def exchange_done(self, exchange: Exchange) -> None:
        if exchange is self._current:
            self._current = None
        if not self._keep_alive:
            self.transport.close()
        elif self._backlog and self._current is None:
            self._next()
        else:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(self._server.keep_alive_s, self.transport.close)

    def _next(self) -> None:
        self._current = self._backlog.pop(0)
        self._server.handle(self._current)


class Server:
    """Accepts connections and runs `handler` for each request in its own task."""

    def __init__(self, tasks: asyncio.TaskGroup, handler: Handler) -> None:
        self._tasks = tasks
        self._handler = handler
        self.connections: set[Connection] = set()
        self.keep_alive_s = float(os.environ.get("SGLANG_TIMEOUT_KEEP_ALIVE", "5"))

    async def listen(self, host: str, port: int) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: Connection(self), host, port, reuse_address=True, backlog=1024
        )

    def handle(self, exchange: Exchange) -> None:
        self._tasks.create_task(self._run(exchange))

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._handler(exchange)
        except Exception:  # noqa: BLE001
            # The boundary of one request, as in the real server: it answers 500 and lives on.
            sys.stderr.write(traceback.format_exc())
            if exchange.status is None:
                exchange.respond(500, b"Internal Server Error", "text/plain; charset=utf-8")
            else:
                exchange.close()
