"""One connection of a client: HTTP/1.1 by httptools, its requests in order, bounds for all of it.

No connection holds memory or a place for ever: its request's head is bounded in bytes and time, and
bytes that its client does not read in time. A client that is gone is missed by every request it had
sent, not only by the last one. What every connection of a listener shares is its `Served`.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from dataclasses import dataclass
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final, cast

import httptools

from inferd.api.error_body import render
from inferd.api.http_cycle import Cycle
from inferd.clock import utc_now
from inferd.errors import BodyTimeout, InferdError, InvalidBody, QueueFull
from inferd.inference import new_request_id

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HEAD_BYTES_MAX: Final = 65_536
PIPELINED_MAX: Final = 16
"""Requests sent ahead on one connection; HTTP clients in use send none."""
KEEP_ALIVE_S: Final = 75.0
"""Longer than the idle time that clients' pools assume, so that it is they who close."""
UNREAD_BYTES_MAX: Final = 65_536
"""Of finished answers; less is left to the idle time, for it may just not have been written yet."""
DATE_S: Final = 1.0
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one listener grants. `stall_s`: a client that accepts nothing so long is cut off."""

    connections_max: int
    head_s_max: float
    stall_s: float


class Served:
    """One listener's connections, and the group that their requests run in."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits, group: asyncio.TaskGroup) -> None:
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.connections: set[InferdProtocol] = set()
        self.empty = asyncio.Event()
        """There is no connection."""
        self.empty.set()
        self._app = app
        self._group = group
        self._date = b""
        self._date_until = 0.0

    def start(self, cycle: Cycle) -> None:
        self._group.create_task(cycle.run(self._app))

    def date(self) -> bytes:
        now = self.loop.time()
        if now >= self._date_until:
            self._date_until = now + DATE_S
            self._date = formatdate(utc_now().timestamp(), usegmt=True).encode("ascii")
        return self._date


class InferdProtocol(asyncio.Protocol):
    """One client connection."""

    __slots__ = (
        "_continue_wanted",
        "_cycles",
        "_head_bytes",
        "_head_timer",
        "_headers",
        "_heard_at",
        "_idle_timer",
        "_limits",
        "_loop",
        "_parser",
        "_reading",
        "_receiving",
        "_served",
        "_url",
        "_writable",
        "transport",
        "write_paused",
    )

    transport: asyncio.Transport

    def __init__(self, served: Served) -> None:
        self._served = served
        self._loop = served.loop
        self._limits = served.limits
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        # What follows a request that asks for the connection's end is not read, and no error.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._cycles: list[Cycle] = []
        """Those without their whole answer; the first one runs."""
        self._receiving: Cycle | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._continue_wanted = False
        self._head_bytes: int | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._heard_at = self._loop.time()
        self._reading = True
        self._writable: asyncio.Event | None = None
        self.write_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        served = self._served
        served.connections.add(self)
        served.empty.clear()
        if len(served.connections) > self._limits.connections_max:
            self._refuse(QueueFull("Too many open connections.", retry_after_s=1))
            return
        self._idle_timer = self._loop.call_later(KEEP_ALIVE_S, self._look_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._end_head()
        self._parser = None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self.resume_writing()
        for cycle in self._cycles:
            cycle.lose()
        served = self._served
        served.connections.discard(self)
        if not served.connections:
            served.empty.set()

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        self._heard_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Served in the protocol that is spoken; what follows is not known to be HTTP.
            self._parser = None
            if self._receiving is not None:
                self._receiving.keep_alive = False
        except httptools.HttpParserError:
            self._refuse(InvalidBody("The bytes received are not an HTTP request."))
            return
        if self._head_bytes is not None:
            self._more_of_a_head(len(data))

    def pause_writing(self) -> None:
        self.write_paused = True
        self._writable = asyncio.Event()
        self._tell_whether_it_keeps_up()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        self._tell_whether_it_keeps_up()

    def _tell_whether_it_keeps_up(self) -> None:
        if self._cycles:
            self._cycles[0].keep_up(keeps_up=not self.write_paused)

    def shut_down(self) -> None:
        """No further request: close when those that have come are answered."""
        if self._cycles:
            self._cycles[-1].keep_alive = False
        else:
            self.transport.close()

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._continue_wanted = False
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._continue_wanted = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None, "it is the parser that calls"
        self._end_head()
        parser = self._parser
        version = parser.get_http_version()
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "scheme": "http",
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "root_path": "",
            "headers": self._headers,
            "server": None,
            "client": None,
        }
        cycle = self._receiving = Cycle(
            self,
            scope,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            continue_wanted=self._continue_wanted,
        )
        self._cycles.append(cycle)
        if len(self._cycles) == 1:
            self._served.start(cycle)
        elif len(self._cycles) > PIPELINED_MAX + 1:
            self.transport.abort()

    def on_body(self, body: bytes) -> None:
        if self._receiving is not None:
            self._receiving.feed(body)

    def on_message_complete(self) -> None:
        if self._receiving is not None:
            self._receiving.end_body()

    def date(self) -> bytes:
        return self._served.date()

    def read_on(self) -> None:
        if not self._reading:
            self._reading = True
            self.transport.resume_reading()

    def stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    async def drain(self) -> None:
        while self._writable is not None:
            await self._writable.wait()

    def answered(self, cycle: Cycle) -> None:
        assert self._cycles[0] is cycle, "answers leave in the order of their requests"
        del self._cycles[0]
        unread = self.transport.get_write_buffer_size()
        if unread > UNREAD_BYTES_MAX:
            self._loop.call_later(self._limits.stall_s, self._look_at_unread, unread)
        if self.transport.is_closing():
            return
        self._heard_at = self._loop.time()
        self.read_on()
        if self._cycles:
            self._served.start(self._cycles[0])

    def _look_if_idle(self) -> None:
        """One timer for the whole connection: to set one anew with each request would cost more."""
        left_s = self._heard_at + KEEP_ALIVE_S - self._loop.time()
        if self._cycles:
            left_s = KEEP_ALIVE_S
        elif left_s <= 0:
            if self.transport.get_write_buffer_size():
                self.transport.abort()  # it reads nothing either: to wait for it would be for ever
            else:
                self.transport.close()
            return
        self._idle_timer = self._loop.call_later(left_s, self._look_if_idle)

    def _look_at_unread(self, before: int) -> None:
        """A finished answer whose client reads no more of it is not kept."""
        unread = self.transport.get_write_buffer_size()
        if unread >= before:
            self.transport.abort()
        elif unread:
            self._loop.call_later(self._limits.stall_s, self._look_at_unread, unread)

    def _more_of_a_head(self, size: int) -> None:
        """A head that came in one read, as nearly all do, is whole by now and gets here never."""
        assert self._head_bytes is not None
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(InvalidBody(f"The request's headers are over {HEAD_BYTES_MAX} bytes."))
        elif self._head_timer is None:
            limit_s = self._limits.head_s_max
            self._head_timer = self._loop.call_later(limit_s, self._head_is_late)

    def _head_is_late(self) -> None:
        limit_s = self._limits.head_s_max
        self._refuse(
            BodyTimeout(
                f"The request's headers did not arrive within {limit_s:g} s. Send it again."
            )
        )

    def _end_head(self) -> None:
        self._head_bytes = None
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, error: InferdError) -> None:
        """Answer without an application behind, and close."""
        self._end_head()
        self._parser = None
        if any(cycle.started for cycle in self._cycles):
            self.transport.abort()  # an answer in the middle of another one would be read as its
            return
        rendered = render(error, new_request_id())
        lines = [b"HTTP/1.1 %d Refused" % rendered.status]
        lines += [name + b": " + value for name, value in rendered.headers if name != b"connection"]
        lines += [b"content-length: %d" % len(rendered.body), b"connection: close", b"", b""]
        self.transport.write(b"\r\n".join(lines) + rendered.body)
        self.transport.close()
