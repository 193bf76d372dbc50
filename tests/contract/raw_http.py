"""Raw HTTP for contract tests: what is sent and received is bytes, nothing is interpreted away."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import orjson


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An answer as it came: head without the final blank line, body with chunks joined."""

    head: str
    body: bytes
    complete: bool

    @property
    def status(self) -> int:
        return int(self.head.split(" ", 2)[1])

    @property
    def text(self) -> str:
        return self.body.decode()


class CutShort(Exception):
    """The connection ended before any answer."""


def encode_request(
    method: str,
    path: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    content_type: str = "application/json",
) -> bytes:
    """One HTTP/1.1 request that asks for the connection to be kept."""
    lines = [f"{method} {path} HTTP/1.1", "host: engine"]
    if body:
        lines += [f"content-type: {content_type}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


async def _chunks(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    parts: list[bytes] = []
    try:
        while True:
            size = int((await reader.readuntil(b"\r\n")).strip(), 16)
            data = await reader.readexactly(size + 2)
            if size == 0:
                return b"".join(parts), True
            parts.append(data[:-2])
    except (asyncio.IncompleteReadError, ConnectionError):
        return b"".join(parts), False


async def exchange(
    port: int,
    method: str,
    path: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    content_type: str = "application/json",
) -> RawAnswer:
    """Send one request and read its whole answer. Raises CutShort if none came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        writer.write(encode_request(method, path, body, headers, content_type))
        try:
            head = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise CutShort(f"{method} {path}") from error
        if "transfer-encoding: chunked" in head.lower():
            data, complete = await _chunks(reader)
            return RawAnswer(head, data, complete)
        lines = [line for line in head.split("\r\n") if line.startswith("content-length: ")]
        data = await reader.readexactly(int(lines[0].partition(": ")[2]))
        return RawAnswer(head, data, complete=True)
    finally:
        writer.close()


async def post_json(
    port: int, path: str, payload: object, headers: dict[str, str] | None = None
) -> RawAnswer:
    """POST a JSON body."""
    return await exchange(port, "POST", path, orjson.dumps(payload), headers)
