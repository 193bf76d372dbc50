"""uvicorn's HTTP protocol with our bounds, our error bodies, and the transport in the scope.

One connection can hold neither memory nor a place for ever: its request's head is bounded in bytes
and time, and bytes that its client does not read are bounded in time. A client that is gone is
missed by every request it had sent, not only by the last one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from inferd.api.error_body import render
from inferd.errors import BodyTimeout, InferdError, InvalidBody, QueueFull
from inferd.inference import new_request_id

HEAD_BYTES_MAX: Final = 65_536
PIPELINED_MAX: Final = 16
"""Requests sent ahead on one connection; HTTP clients in use send none."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one listener grants. `stall_s`: a client that accepts nothing so long is cut off."""

    connections_max: int
    head_s_max: float
    stall_s: float


class ChunkedBody:
    """The body of a streamed response, written without a task: what `send` does, less the wait."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def ready(self) -> bool:
        """The head of a chunked response has been sent, and its client keeps up."""
        cycle = self._cycle
        return (
            cycle.chunked_encoding is True
            and not cycle.flow.write_paused
            and not cycle.response_complete
            and not cycle.disconnected
            and not cycle.transport.is_closing()  # a write would be lost, and a warning logged
        )

    def write(self, data: bytes) -> None:
        """One chunk; only while `ready`, and never of no bytes: that would end the body."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def protocol_class(connection_limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """The protocol of one listener."""

    class Bounded(InferdProtocol):
        limits = connection_limits

    return Bounded


class InferdProtocol(HttpToolsProtocol):
    """One client connection."""

    limits: ClassVar[ConnectionLimits]

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the server's own
        super().__init__(*args, **kwargs)
        self._head_bytes: int | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._earlier: list[RequestResponseCycle] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections_max:
            self._refuse(QueueFull("Too many open connections.", retry_after_s=1))
            return
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        for cycle in self._earlier:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(InvalidBody(f"The request's headers are over {HEAD_BYTES_MAX} bytes."))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self.limits.head_s_max, self._head_is_late)
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope["inferd.transport"] = self.transport

    def on_headers_complete(self) -> None:
        self._end_head()
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        if cycle is not None and not cycle.response_complete:
            self._earlier = [one for one in self._earlier if not one.response_complete]
            self._earlier.append(cycle)
            if len(self._earlier) > PIPELINED_MAX:
                self.transport.abort()
        super().on_headers_complete()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope["inferd.body"] = ChunkedBody(self.cycle)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if unread := self.transport.get_write_buffer_size():
            self.loop.call_later(self.limits.stall_s, self._look_at_unread, unread)

    def send_400_response(self, msg: str) -> None:
        del msg
        self._refuse(InvalidBody("The bytes received are not an HTTP request."))

    def _look_at_unread(self, before: int) -> None:
        """A finished answer whose client reads no more of it is not kept."""
        unread = self.transport.get_write_buffer_size()
        if unread >= before:
            self.transport.abort()
        elif unread:
            self.loop.call_later(self.limits.stall_s, self._look_at_unread, unread)

    def _head_is_late(self) -> None:
        limit_s = self.limits.head_s_max
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
        cycles: list[RequestResponseCycle | None] = [*self._earlier, self.cycle]
        if any(one is not None and _begun(one) for one in cycles):
            self.transport.abort()  # an answer in the middle of another one would be read as its
            return
        rendered = render(error, new_request_id())
        lines = [b"HTTP/1.1 %d Refused" % rendered.status]
        lines += [name + b": " + value for name, value in rendered.headers if name != b"connection"]
        lines += [b"content-length: %d" % len(rendered.body), b"connection: close", b"", b""]
        self.transport.write(b"\r\n".join(lines) + rendered.body)
        self.transport.close()


def _begun(cycle: RequestResponseCycle) -> bool:
    return cycle.response_started and not cycle.response_complete
