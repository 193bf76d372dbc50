"""One request and its answer on a client's connection: the ASGI server's half of both.

`send` writes at once; what it returns is awaited for back-pressure alone. A stream's chunks go past
it by `write`. The connection owns the order of its cycles; a cycle says when its answer is whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from inferd.api.disconnect import SCOPE_KEY

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope

UNREAD_BODY_BYTES_MAX: Final = 65_536
"""Of a request's body that nobody has taken yet; beyond it the socket is not read."""
_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode("ascii"))
    for status in HTTPStatus
}
_NO_BODY: Final = frozenset({204, 304})
_CRASHED: Final = b"Internal Server Error"
_log: Final = logging.getLogger(__name__)


class _Nothing:
    """Awaited, it is there already."""

    __slots__ = ()

    def __await__(self) -> Generator[None]:
        return
        yield


_NOTHING: Final = _Nothing()


class Connection(Protocol):
    """The connection of a cycle, as far as a cycle goes."""

    transport: asyncio.Transport
    write_paused: bool

    def date(self) -> bytes:
        """The value of the header, of this second."""

    def read_on(self) -> None:
        """Somebody takes the body: go on reading, if it was stopped."""

    def stop_reading(self) -> None:
        """More has come than is taken."""

    async def drain(self) -> None:
        """Until the client has taken enough of what was written."""

    def answered(self, cycle: Cycle) -> None:
        """The answer is whole."""


class Cycle:
    """Made when the head of a request has come. Its own `Client`, see `inferd.api.disconnect`."""

    __slots__ = (
        "_body",
        "_connection",
        "_head",
        "_left_bytes",
        "_news",
        "_waiter",
        "_when_gone",
        "_without_body",
        "chunked",
        "continue_wanted",
        "gone",
        "keep_alive",
        "more_body",
        "ready",
        "scope",
        "started",
        "whole",
        "write_chunk",
    )

    def __init__(
        self, connection: Connection, scope: Scope, *, keep_alive: bool, continue_wanted: bool
    ) -> None:
        self.scope = scope
        scope[SCOPE_KEY] = self
        self._connection = connection
        self._body = b""
        self._head = b""
        self._news = False
        self._waiter: asyncio.Future[None] | None = None
        self._when_gone: Callable[[], object] | None = None
        self._left_bytes: int | None = 0
        self._without_body = scope["method"] == "HEAD"
        self.chunked = False
        self.keep_alive = keep_alive
        self.continue_wanted = continue_wanted
        self.more_body = True
        self.gone = False
        self.started = False
        self.whole = False
        # Attributes, for they are asked for with every token.
        self.ready = False
        self.write_chunk: Callable[[bytes], object] = connection.transport.write

    @property
    def unread_bytes(self) -> int:
        return self._connection.transport.get_write_buffer_size()

    def tell_when_gone(self, told: Callable[[], object] | None) -> None:
        self._when_gone = told

    def write(self, data: bytes) -> None:
        self._connection.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def abort(self) -> None:
        self.ready = False
        self._connection.transport.abort()

    def keep_up(self, *, keeps_up: bool) -> None:
        """Whether the client takes what is written: the connection tells when that changes."""
        self.ready = keeps_up and self.chunked and not self.whole and not self.gone

    async def run(self, app: ASGIApp) -> None:
        """The request's task: nothing that goes wrong in it reaches another one's."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:  # noqa: BLE001 - the last boundary: logged, and the client told
            _log.exception("A request failed where its client could not be told any more.")
        del self.scope[SCOPE_KEY]  # or the two would be left to the garbage collector
        if self.whole or self.gone:
            return
        if self.started:
            self.abort()  # an answer that just stops must not look like a whole one
            return
        self.keep_alive = False
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(_CRASHED))]
        self.send({"type": "http.response.start", "status": 500, "headers": headers})
        self.send({"type": "http.response.body", "body": _CRASHED})

    def lose(self) -> None:
        """The connection is lost."""
        self.gone = True
        self.ready = False
        self._wake()
        if (told := self._when_gone) is not None:
            told()

    def feed(self, data: bytes) -> None:
        """More of the request's body has come."""
        if self.whole:
            return  # answered without it: the rest is nobody's
        self._body = self._body + data if self._body else data
        if len(self._body) > UNREAD_BODY_BYTES_MAX:
            self._connection.stop_reading()
        self._news = True
        self._wake()

    def end_body(self) -> None:
        """The request's body has come to its end."""
        self.more_body = False
        self._news = True
        self._wake()

    async def receive(self) -> Message:
        """ASGI's: what has come of the body since the last call, or that nobody is there."""
        connection = self._connection
        if self.continue_wanted and not connection.transport.is_closing():
            self.continue_wanted = False
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self._news and not self.gone and not self.whole:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self.gone or self.whole:
            return {"type": "http.disconnect"}
        self._news = False
        body, self._body = self._body, b""
        connection.read_on()  # to the body's end and beyond it: that is how a loss is noticed
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def send(self, message: Message) -> Awaitable[None]:
        """ASGI's: written when it returns, if anybody is there. Awaited, the client keeps up."""
        connection = self._connection
        if self.gone or connection.transport.is_closing():
            return _NOTHING
        if self.started:
            self._go_on(message)
        else:
            self._start(message)
        return connection.drain() if connection.write_paused else _NOTHING

    def _start(self, message: Message) -> None:
        status = message["status"]
        lines = [_STATUS_LINES[status], b"date: ", self._connection.date(), b"\r\n"]
        length: int | None = None
        ends = 3  # of lines: the status, the date, and the empty one
        for name, value in message["headers"]:
            if name == b"content-length":
                length = int(value)
            elif name == b"connection" and value == b"close":
                self.keep_alive = False
                continue
            lines += (name, b": ", value, b"\r\n")
            ends += 1
        if self._without_body or status in _NO_BODY:
            self._without_body = True
            length = 0
        elif length is None and self.scope["http_version"] == "1.1":
            self.chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
            ends += 1
        if not self.keep_alive or (length is None and not self.chunked):
            self.keep_alive = False
            lines.append(b"connection: close\r\n")
            ends += 1
        lines.append(b"\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != ends or head.count(b"\r") != ends:
            raise ValueError("A response header holds a line break.")
        self._left_bytes = length
        self.continue_wanted = False
        self.started = True
        self.keep_up(keeps_up=not self._connection.write_paused)
        if length is None:
            self._connection.transport.write(head)
        else:
            self._head = head  # leaves with the body, which follows at once

    def _go_on(self, message: Message) -> None:
        if self.whole:
            raise RuntimeError("Nothing follows the end of a response.")
        body, more = message.get("body", b""), message.get("more_body", False)
        write = self._connection.transport.write
        if self.chunked:
            if body:
                self.write(body)
            if not more:
                write(b"0\r\n\r\n")
        else:
            if self._without_body:
                body = b""
            if self._left_bytes is not None:
                self._left_bytes -= len(body)
                if self._left_bytes < 0 or (self._left_bytes and not more):
                    raise RuntimeError("A response's body is not as long as it was said to be.")
            head, self._head = self._head, b""
            if head or body:
                write(head + body)
        if not more:
            self._end()

    def _end(self) -> None:
        self.whole = True
        self.ready = False
        self._wake()
        if not self.keep_alive:
            self._connection.transport.close()
        self._connection.answered(self)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
