"""The streamed answer of one request: starts late, relays, keeps alive, and never ends in silence.

The status line waits for the worker's first event, so that a refusal is a real status, but at most
`FIRST_EVENT_S_MAX`; then comments hold the connection open. What fails after the start is an error
event, without `[DONE]`. A client that accepts nothing for `stall_s` is cut off: it holds KV cache.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from inferd.api.disconnect import ClientGoneError
from inferd.api.error_body import render_event
from inferd.clock import monotonic
from inferd.upstream.relay import ChatRelay

if TYPE_CHECKING:
    from starlette.types import Scope, Send

    from inferd.errors import InferdError
    from inferd.inference import InferenceRequest

FIRST_EVENT_S_MAX: Final = 5.0
KEEP_ALIVE_S: Final = 15.0
KEEP_ALIVE: Final = b": keepalive\n\n"
HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """A sink for `dispatch`, and the ticker of its request's watcher."""

    __slots__ = (
        "_arrived",
        "_blocked_since",
        "_last_sent",
        "_relay",
        "_request",
        "_send",
        "_stall_s",
        "_transport",
        "content_sent",
        "started",
    )

    def __init__(
        self,
        scope: Scope,
        send: Send,
        request: InferenceRequest,
        *,
        stall_s: float,
    ) -> None:
        self._send = send
        self._request = request
        self._stall_s = stall_s
        self._transport: asyncio.Transport | None = scope.get("inferd.transport")
        self._relay: ChatRelay | None = None
        self._arrived = monotonic()
        self._last_sent = self._arrived
        self._blocked_since: float | None = None
        self.started = False
        self.content_sent = False

    def answer(self, request: InferenceRequest, attempt_id: str) -> ChatRelay:
        self._relay = ChatRelay(request, attempt_id)
        return self._relay

    async def send(self, data: bytes) -> None:
        self.content_sent = True
        await self._write(data)

    async def end(self) -> None:
        """The stream is complete: its last event has been sent."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, error: InferdError, request_id: str) -> None:
        """Tell the error in the stream, with the usage so far; no `[DONE]` follows."""
        usage = self._relay.bill(self._request.prompt_tokens_estimated) if self._relay else None
        event = render_event(error, usage, request_id)
        await self._send({"type": "http.response.body", "body": event, "more_body": False})

    def next_tick(self) -> float:
        if self._blocked_since is not None:
            return self._blocked_since + self._stall_s
        if not self.started:
            return self._arrived + FIRST_EVENT_S_MAX
        return self._last_sent + min(KEEP_ALIVE_S, self._stall_s)

    async def tick(self) -> None:
        """Write a comment if nothing was sent for long, or cut off a client that does not read.

        Raises:
            ClientGoneError: the client has accepted nothing for `stall_s` seconds.
        """
        now = monotonic()
        if self._blocked_since is None and self._unread():
            self._blocked_since = self._last_sent  # written, but still in our buffer
        if self._blocked_since is None:
            if not self.started or now - self._last_sent >= KEEP_ALIVE_S:
                await self._write(KEEP_ALIVE)
        elif now - self._blocked_since >= self._stall_s:
            if self._unread():
                assert self._transport is not None
                self._transport.abort()
                raise ClientGoneError
            self._blocked_since = None

    def _unread(self) -> bool:
        """Bytes are waiting for the client to read."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    async def _write(self, data: bytes) -> None:
        self._blocked_since = self._last_sent = monotonic()
        try:
            if not self.started:
                self.started = True
                start = {"type": "http.response.start", "status": 200, "headers": HEADERS}
                await self._send(start)
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            self._blocked_since = None
