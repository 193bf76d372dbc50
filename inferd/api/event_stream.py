"""The streamed answer of one request: starts late, relays, keeps alive, and never ends in silence.

The status line waits for the worker's first event, so that a refusal is a real status, but at most
`FIRST_EVENT_S_MAX`; then comments hold the connection open. What fails after the start is an error
event, without `[DONE]`. A client that accepts nothing for `stall_s` is cut off: it holds KV cache.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from inferd.api.error_body import error_content
from inferd.upstream.chat_relay import ChatRelay
from inferd.upstream.frames import encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Send

    from inferd.api.disconnect import Client
    from inferd.inference import InferenceRequest
    from inferd.upstream.relay import StreamRelay

FIRST_EVENT_S_MAX: Final = 5.0
KEEP_ALIVE_S: Final = 15.0
KEEP_ALIVE: Final = b": keepalive\n\n"
HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """A sink for `dispatch`, and the ticker of its request's scope."""

    __slots__ = (
        "_accepted",
        "_accepted_at",
        "_arrived",
        "_client",
        "_last_sent",
        "_looked",
        "_new_relay",
        "_relay",
        "_send",
        "_stall_s",
        "_time",
        "_written",
        "content_sent",
        "output_at",
        "started",
    )

    def __init__(
        self,
        client: Client,
        send: Send,
        *,
        new_relay: Callable[[InferenceRequest, str], StreamRelay] = ChatRelay,
        stall_s: float,
    ) -> None:
        self._send = send
        self._new_relay = new_relay
        self._stall_s = stall_s
        self._client = client
        self._relay: StreamRelay | None = None
        # Bound once: to ask for the running loop costs more than to ask it for its time.
        self._time = asyncio.get_running_loop().time
        self._arrived = self._last_sent = self._looked = self._accepted_at = self._time()
        self.output_at = self._arrived
        self._written = 0
        self._accepted = 0
        self.started = False
        self.content_sent = False

    def answer(self, request: InferenceRequest, attempt_id: str) -> StreamRelay:
        self._relay = self._new_relay(request, attempt_id)
        return self._relay

    async def send(self, data: bytes) -> None:
        self.content_sent = True
        await self._write(data)
        self.output_at = self._time()

    def push(self, data: bytes) -> bool:
        """Relay what a read from the worker brought, if it needs neither a look nor a wait."""
        client, relay = self._client, self._relay
        if relay is None or not client.ready:
            return False
        out = relay.pass_through(data)
        if out is None:
            return False
        self.output_at = self._time()
        self._written += len(out)
        client.write(out)
        return True

    def push_chunk(self, chunk: bytes) -> bool:
        """The same for a chunk with its frame, which the client's body then has as well.

        The way of nearly every token: what is called is read into a variable first, for a call of
        what a slot holds is the one that the interpreter does not specialise.
        """
        client, relay, time = self._client, self._relay, self._time
        if relay is None or not client.ready:
            return False
        out = relay.pass_chunk(chunk)
        if out is None:
            return False
        self.output_at = time()
        self._written += len(out)
        write_chunk = client.write_chunk
        write_chunk(out)
        return True

    async def end(self) -> None:
        """The stream is complete: its last event has been sent."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, error: Exception, request_id: str) -> None:
        """Tell the error in the stream, with the usage so far; no `[DONE]` follows."""
        content = error_content(error, request_id)
        event = self._relay.error_event(content) if self._relay else encode({"error": content})
        await self._send({"type": "http.response.body", "body": event, "more_body": False})

    def next_tick(self) -> float:
        look = self._looked + self._stall_s / 2
        comment = self._comment_due()
        return min(look, comment) if comment > self._looked else look

    def tick(self) -> None:
        """Write a comment if nothing was sent for long, or cut off a client that does not read.

        The cut is a lost connection, which ends the request.
        """
        now = self._looked = self._time()
        unread = self._client.unread_bytes
        accepted = self._written - unread
        if not unread or accepted > self._accepted:
            self._accepted, self._accepted_at = accepted, now
        elif now - self._accepted_at >= self._stall_s:
            self._client.abort()
            return
        if not unread and now >= self._comment_due():
            self._write(KEEP_ALIVE)

    def _comment_due(self) -> float:
        if self.started:
            return max(self._last_sent, self.output_at) + KEEP_ALIVE_S
        return self._arrived + FIRST_EVENT_S_MAX

    def _write(self, data: bytes) -> Awaitable[None]:
        """Written when it returns; awaited, the client keeps up."""
        self._last_sent = self._time()
        if not self.started:
            self.started = True
            self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        self._written += len(data)
        return self._send({"type": "http.response.body", "body": data, "more_body": True})
