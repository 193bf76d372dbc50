"""One TCP connection to a worker: httptools' protocol, one exchange at a time.

Reads are bounded: past `BUFFER_BYTES_MAX` of unread body the socket is not read. What a read brings
waits for `take`, or is pushed on at once: a chunk of a chunked body even with its frame, unparsed.
Failures are kept as an `UpstreamError` for the reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools

from inferd.errors import UpstreamError, WorkerUnreachable

BUFFER_BYTES_MAX: Final = 262_144
FIRST_FINAL_STATUS: Final = 200
"""Below it stand the interim answers (100 Continue), which announce another head."""


class Taker(Protocol):
    """Takes what a read brought at once, or declines it. Neither may raise."""

    def push(self, data: bytes) -> bool:
        """Bytes of the body."""

    def push_chunk(self, chunk: bytes) -> bool:
        """A read that begins where a chunk of the body does, as it came: one whole chunk or not."""


class Connection(asyncio.Protocol):
    """One TCP connection to a worker; carries one exchange at a time."""

    __slots__ = (
        "_between_chunks",
        "_buffered",
        "_chunk_ended",
        "_chunks",
        "_keep_alive",
        "_parser",
        "_passing",
        "_paused",
        "_taker",
        "_transport",
        "_waiter",
        "error",
        "head_seen",
        "headers",
        "idle_since",
        "reads",
        "status",
        "used",
        "when_whole",
        "whole",
    )

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self.idle_since = 0.0
        self.used = False
        self.begin()

    def begin(self) -> None:
        """Forget the previous answer; the connection is reused as it is."""
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.head_seen = False
        self.whole = False
        self.reads = 0
        """How often bytes of the answer came."""
        self._keep_alive = False
        self.when_whole: Callable[[Connection], None] | None = None
        self._taker: Taker | None = None
        self._passing: Taker | None = None
        """The taker, while what is read next begins where a chunk does."""
        self._chunk_ended = False
        self._between_chunks = False
        self.error: UpstreamError | None = None
        self._chunks: list[bytes] = []
        self._buffered = 0

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def reusable(self) -> bool:
        clean = self.whole and self.error is None and not self._chunks
        return self.open and clean and self._keep_alive

    def send(self, data: bytes) -> None:
        if self._transport is not None:  # else it was lost already: the reader is told
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def fail(self, error: UpstreamError) -> None:
        """Make the pending read and all later ones raise `error`; what was read is dropped."""
        self._chunks.clear()
        self._buffered = 0
        self.error = error
        self._wake()
        self.close()

    def take(self) -> bytes:
        """All bytes read so far, as one block."""
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def push(self, taker: Taker) -> None:
        """Give every block to `taker` as it is read, until it declines one, or the answer ends.

        What was declined, and what came after it, is left for `take`. A read that begins where a
        chunk of the body does is offered as a chunk first: it is taken only if it is one, and
        whole. No task runs in between: that is what a streamed event costs least with.
        """
        self._taker = taker
        self._passing = taker if self._between_chunks else None
        try:
            while self._pushing and not self.whole and self.error is None:
                await self.wait()
        finally:
            self._taker = self._passing = None

    async def wait(self) -> None:
        """Until something changed: a head, bytes, the end or an error."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    @property
    def _pushing(self) -> bool:
        """Not declined so far: `on_body` sees to that while `push` waits."""
        return self._taker is not None

    def has_bytes(self) -> bool:
        return bool(self._chunks)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        if self.whole or self.error is not None:
            self._wake()
            return
        if self.head_seen and not self._has_length():
            self.whole = True
        else:
            what = "in the middle of its answer" if self.reads else "before it answered"
            self.error = WorkerUnreachable(f"The worker closed the connection {what}.")
        self._wake()

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        passing = self._passing
        if passing is not None and passing.push_chunk(data):
            return  # the parser stands between two chunks as before
        self._chunk_ended = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.error = WorkerUnreachable("The worker did not answer in HTTP.")
            self.close()
        # A piece of the next chunk's size may follow the last one's end: only a line's end is one.
        self._between_chunks = self._chunk_ended and data.endswith(b"\r\n")
        if self._taker is None or self.whole or self.error is not None:
            self._passing = None
            self._wake()
        else:
            self._passing = self._taker if self._between_chunks else None

    def on_chunk_header(self) -> None:
        self._chunk_ended = False

    def on_chunk_complete(self) -> None:
        self._chunk_ended = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.head_seen = self.status >= FIRST_FINAL_STATUS
        self._keep_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if self._taker is not None:
            if self._taker.push(body):
                return
            self._taker = None
        self._chunks.append(body)
        self._buffered += len(body)
        if self._buffered > BUFFER_BYTES_MAX and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.head_seen:
            self.whole = True
            if self.when_whole is not None:
                asyncio.get_running_loop().call_soon(self.when_whole, self)
                self.when_whole = None
        else:
            self.headers.clear()

    def _has_length(self) -> bool:
        return b"content-length" in self.headers or b"transfer-encoding" in self.headers

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
