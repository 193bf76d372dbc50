"""One TCP connection to a listener, byte by byte: what no HTTP library lets a test do or see."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from inferd.config.address import Address
from tests.contract.client import Transcript, transcript
from tests.fakes.gateway import Gateway

LAZY_BYTES = 4_096
EAGER_BYTES = 1 << 22
CHAT_PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `complete` is False when the connection ended in the middle of its body."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool = True

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error = self.json["error"]
        assert isinstance(error, dict)
        return error

    @property
    def told(self) -> Transcript:
        return transcript(self.body.decode())


class RawConnection:
    """Send bytes, read answers. Every answer is checked for keys: there is none in any."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host
        self.headers: dict[str, str] = {}

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send one request; a body is announced as JSON, with its length, unless told otherwise."""
        fields = {"host": self._host, **self.headers, **(headers or {})}
        if body:
            fields.setdefault("content-type", "application/json")
            fields.setdefault("content-length", str(len(body)))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {fields[name]}" for name in fields)]
        self.send("\r\n".join([*lines, "", ""]).encode() + body)

    def chat(self, body: Mapping[str, Any]) -> None:
        self.request("POST", CHAT_PATH, orjson.dumps(body))

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers, names in lower case. Raises IncompleteReadError if none comes."""
        text = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, *lines = text.rstrip().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        return int(status.split(" ", 2)[1]), {name.lower(): value for name, value in pairs}

    async def chunk(self) -> bytes:
        """The next chunk of a body; empty at its end."""
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(size + 2))[:-2]

    async def chunks(self, count: int) -> list[bytes]:
        return [await self.chunk() for _ in range(count)]

    async def answer(self) -> Answer:
        """The whole next answer."""
        status, headers = await self.head()
        return await self.rest(status, headers)

    async def rest(self, status: int = 0, headers: Mapping[str, str] | None = None) -> Answer:
        """The body of an answer whose head was read."""
        known = dict(headers or {"transfer-encoding": "chunked"})
        complete = True
        parts: list[bytes] = []
        try:
            if "content-length" in known:
                parts.append(await self._reader.readexactly(int(known["content-length"])))
            elif known.get("transfer-encoding") == "chunked":
                while chunk := await self.chunk():
                    parts.append(chunk)
            else:
                parts.append(await self._reader.read())
        except (asyncio.IncompleteReadError, ConnectionError):
            complete = False
        answer = Answer(status, known, b"".join(parts), complete)
        told = answer.body.decode("utf-8", "replace") + str(known)
        assert not any(secret in told for secret in Gateway.secrets), "an answer holds a key"
        return answer

    async def read(self, count: int) -> bytes:
        """Whatever has come, at most so much; empty at the end. Raises ConnectionError on a cut."""
        return await self._reader.read(count)

    async def ended(self) -> bool:
        """Wait until the other side closes; whether that came without another byte."""
        try:
            return await self.read(1) == b""
        except ConnectionError:
            return True

    def leave(self) -> None:
        """Close it, as a client does that lost interest."""
        self._writer.close()

    def reset(self) -> None:
        """End it with a TCP reset, as a crashed client does."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


@asynccontextmanager
async def raw_connection(
    address: Address, headers: Mapping[str, str] | None = None, *, lazy: bool = False
) -> AsyncIterator[RawConnection]:
    """Connect; every request carries `headers`. `lazy`: as little as possible is read ahead."""
    sock = socket.socket()
    sock.setblocking(False)
    if lazy:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LAZY_BYTES)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (address.host, address.port))
    except OSError:
        sock.close()
        raise
    limit = LAZY_BYTES if lazy else EAGER_BYTES
    reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    connection = RawConnection(reader, writer, str(address))
    connection.headers = dict(headers or {})
    try:
        yield connection
    finally:
        writer.close()


@asynccontextmanager
async def client_of(inferd: Gateway, *, lazy: bool = False) -> AsyncIterator[RawConnection]:
    """A connection to the public listener with the team's key."""
    async with raw_connection(inferd.public, inferd.headers, lazy=lazy) as connection:
        yield connection


async def ask(inferd: Gateway, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
    """POST one chat body, JSON or bytes, on a connection of its own."""
    async with client_of(inferd) as connection:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        connection.request("POST", CHAT_PATH, data, headers)
        return await connection.answer()


def chat(content: str = "Tell me a story.", /, **more: Any) -> dict[str, Any]:
    """A chat body; `more` overrides."""
    return {
        "model": "chat",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        **more,
    }


def holding(content: str = "Hold this slot", /, **more: Any) -> dict[str, Any]:
    """A streamed chat that goes on for many seconds on the paced engine."""
    return chat(content, **{"max_tokens": 2_000, "ignore_eos": True, "stream": True, **more})
