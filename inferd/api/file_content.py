"""A file's bytes as an answer: whole or one range, streamed, its memory that of one read.

The status line waits for the first bytes, so that a store that fails is a real status. A client
that accepts nothing for `stall_s` is cut off; one that leaves ends the reading.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from inferd.api.byte_range import byte_range
from inferd.api.disconnect import Client, WhileClientWaits, client_of
from inferd.api.file_transfer import transferring
from inferd.api.headers import header
from inferd.batch.objects import FileStore
from inferd.clock import monotonic
from inferd.storage.files import FileRow

_UNQUOTED: Final = frozenset('"\\')


class FileContent:
    """The ASGI endpoint. `find` tells which file a request may have."""

    def __init__(
        self, find: Callable[[Request], Awaitable[FileRow]], store: FileStore, stall_s: float
    ) -> None:
        self._find = find
        self._store = store
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        file = await self._find(Request(scope, receive))
        async with transferring(self._store, "download"):
            await self._answer(file, scope, send)

    async def _answer(self, file: FileRow, scope: Scope, send: Send) -> None:
        etag = f'"{file.id}"'.encode()
        headers = scope["headers"]
        asked = header(headers, b"range")
        if asked is not None and header(headers, b"if-range") not in {None, etag}:
            asked = None
        part = byte_range(asked, file.bytes)
        start, stop = part or (0, file.bytes)
        told = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", b"%d" % (stop - start)),
            (b"content-disposition", _disposition(file.filename)),
            (b"x-content-type-options", b"nosniff"),
            (b"accept-ranges", b"bytes"),
            (b"etag", etag),
        ]
        if part is not None:
            told.append((b"content-range", b"bytes %d-%d/%d" % (start, stop - 1, file.bytes)))
        begin: Message = {
            "type": "http.response.start",
            "status": 206 if part else 200,
            "headers": told,
        }
        if scope["method"] == "HEAD":
            await send(begin)
            await send({"type": "http.response.body", "body": b""})
            return
        reader = _Reader(client_of(scope), self._stall_s)
        with WhileClientWaits(reader.client, reader):
            async with aclosing(self._store.stream(file.blobs, start, stop)) as pieces:
                await self._stream(pieces, begin, send, reader)

    async def _stream(
        self, pieces: AsyncGenerator[bytes], begin: Message, send: Send, reader: _Reader
    ) -> None:
        async for data in pieces:
            if not reader.written:
                await send(begin)
            reader.written += len(data)
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._store.metrics.file_transfer_bytes["download"].inc(len(data))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Reader:
    """Cuts off a client that does not read: the ticker of the request's scope."""

    def __init__(self, client: Client, stall_s: float) -> None:
        self.written = 0
        self.client = client
        self._stall_s = stall_s
        self._accepted = 0
        self._accepted_at = self._looked = monotonic()

    def next_tick(self) -> float:
        return self._looked + self._stall_s / 2

    def tick(self) -> None:
        now = self._looked = monotonic()
        unread = self.client.unread_bytes
        accepted = self.written - unread
        if not unread or accepted > self._accepted:
            self._accepted, self._accepted_at = accepted, now
        elif now - self._accepted_at >= self._stall_s:
            self.client.abort()


def _disposition(filename: str) -> bytes:
    """For old clients what is ASCII in it, for others all of it."""
    plain = "".join(c if c.isascii() and c.isprintable() else "_" for c in filename)
    safe = "".join("_" if c in _UNQUOTED else c for c in plain)
    return f"attachment; filename=\"{safe}\"; filename*=UTF-8''{quote(filename, safe='')}".encode()
