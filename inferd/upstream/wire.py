"""The relay's HTTP client: exchanges on connections, and a small pool of these per worker.

`Exchange` is one request and its answer on one connection. Reads are bounded, so a slow client
slows its worker. Every failure of the network or of the worker's HTTP leaves here as an
`UpstreamError`; httptools and socket exceptions appear nowhere else.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from inferd.errors import UpstreamError, WorkerUnreachable
from inferd.upstream.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from inferd.upstream.connection import Taker

CONNECT_S_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 67_108_864
"""A whole answer held in memory (`read_all`): 64 MiB, far above any real completion."""
IDLE_S_MAX: Final = 4.0
"""SGLang's server drops idle connections after 5 s; a younger one is safe to use again."""
IDLE_MAX: Final = 64
FINISH_S_MAX: Final = 1.0


class Origin:
    """Where a worker listens: scheme, host, port, and the path its API is mounted on."""

    __slots__ = ("host", "host_header", "path", "port", "tls")

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.tls = parts.scheme == "https"
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or (443 if self.tls else 80)
        self.path = parts.path.rstrip("/")
        self.host_header = parts.netloc.rpartition("@")[2]


class Exchange:
    """One request and its answer. Close it exactly once, on every path."""

    __slots__ = ("_closed", "_connection", "_failed", "_pool", "_request", "_reused", "pardoned")

    def __init__(self, pool: WorkerPool, connection: Connection, request: bytes) -> None:
        self._pool = pool
        self._connection = connection
        self._request = request
        self._reused = connection.used
        self._failed = False
        self._closed = False
        self.pardoned = False
        """Another worker's part comes first: it is not this one that is waited for."""
        connection.used = True
        connection.send(request)

    @property
    def whole(self) -> bool:
        """The answer has been received and read to its end."""
        return self._connection.whole and not self._connection.has_bytes()

    @property
    def reads(self) -> int:
        """How often bytes of the answer have come from the worker."""
        return self._connection.reads

    @property
    def unread(self) -> bool:
        """Bytes have come that nobody has read yet: it is not the worker that is waited for."""
        return self._connection.has_bytes()

    @property
    def begun(self) -> bool:
        """The answer's head has come."""
        return self._connection.head_seen

    @property
    def failed(self) -> bool:
        """The worker was lost, or somebody called `fail`."""
        return self._connection.error is not None

    async def head(self) -> int:
        """Wait for the status line and headers; return the status.

        A reused connection that the worker closed just as we wrote is replaced by a new one, once:
        not a byte of an answer was seen on it, so the request was not begun.

        Raises:
            UpstreamError: the worker was lost, or somebody called `fail`.
        """
        while not self._connection.head_seen:
            if self._connection.error is not None:
                if not self._reused or self._failed or self._connection.reads:
                    raise self._connection.error
                self._reused = False
                self._send_again(await self._pool.connect())
            else:
                await self._connection.wait()
        self._request = b""  # never sent again: a prompt is not kept for its answer's sake
        return self._connection.status

    def _send_again(self, connection: Connection) -> None:
        """On a new connection, unless somebody called `fail` while it was made."""
        if self._failed:
            connection.close()
            return
        self._connection = connection
        connection.used = True
        connection.send(self._request)

    def header(self, name: bytes) -> bytes | None:
        return self._connection.headers.get(name)

    async def read(self) -> bytes:
        """Bytes of the body that have come since the last call; empty at its end.

        Raises:
            UpstreamError: the worker was lost before the end; bytes read before that come first.
        """
        connection = self._connection
        while True:
            if connection.has_bytes():
                return connection.take()
            if connection.error is not None:
                raise connection.error
            if connection.whole:
                return b""
            await connection.wait()

    async def push(self, taker: Taker) -> None:
        """Bytes of the body go to `taker` as they come, until it declines some or the body ends.

        What comes as one whole chunk is offered with its frame first. What was declined both ways
        is what `read` gives next; `read` also tells of a lost worker.
        """
        connection = self._connection
        if not connection.has_bytes():
            await connection.push(taker)

    async def read_all(self, bytes_max: int = ANSWER_BYTES_MAX) -> bytes:
        """The whole body.

        Raises:
            UpstreamError: lost before the end, or longer than `bytes_max`.
        """
        parts: list[bytes] = []
        size = 0
        while data := await self.read():
            parts.append(data)
            size += len(data)
            if size > bytes_max:
                error = UpstreamError(f"The worker's answer is over {bytes_max} bytes.")
                self.fail(error)
                raise error
        return b"".join(parts)

    def fail(self, error: UpstreamError) -> None:
        """Make whoever reads this answer see `error`; nothing happens to one that is whole."""
        if not self._closed and not self._connection.whole:
            self._failed = True
            self._connection.fail(error)

    def finish(self) -> None:
        """The last event has been read: whatever still ends the body is nobody's wait.

        The connection is reused once the body has ended, or closed after `FINISH_S_MAX` seconds.
        """
        if not self._closed:
            self._closed = True
            self._pool.give_back_when_whole(self._connection)

    def close(self) -> None:
        """Give the connection back if the answer is whole, else close it."""
        if not self._closed:
            self._closed = True
            self._pool.give_back(self._connection)


class WorkerPool:
    """The connections to one worker: opened on demand, reused when the last answer was whole."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._origin = Origin(url)
        self._idle: list[Connection] = []
        self._tls = ssl.create_default_context() if self._origin.tls else None
        self._closed = False
        lines = [f"Host: {self._origin.host_header}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._fixed = "\r\n".join(lines).encode("latin-1")

    @property
    def idle(self) -> int:
        """Connections kept for the next request."""
        return len(self._idle)

    async def open(
        self, method: str, path: str, body: bytes = b"", traceparent: str | None = None
    ) -> Exchange:
        """Send one request; its answer is awaited on the exchange.

        Raises:
            WorkerUnreachable: no connection within `CONNECT_S_MAX` seconds.
        """
        connection = self._take_idle() or await self.connect()
        return Exchange(self, connection, self._request(method, path, body, traceparent))

    async def connect(self) -> Connection:
        """A new connection.

        Raises:
            WorkerUnreachable: refused, or not there within `CONNECT_S_MAX` seconds.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                _, connection = await loop.create_connection(
                    Connection, self._origin.host, self._origin.port, ssl=self._tls
                )
        except TimeoutError as error:
            raise WorkerUnreachable("The worker did not accept a connection in time.") from error
        except OSError as error:
            raise WorkerUnreachable("The worker does not accept connections.") from error
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose answer is whole; close any other."""
        if connection.reusable and not self._closed and len(self._idle) < IDLE_MAX:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.close()

    def give_back_when_whole(self, connection: Connection) -> None:
        """Keep a connection whose answer lacks only its end; close it if the end does not come."""
        if connection.whole or not connection.open:
            self.give_back(connection)
            return
        connection.when_whole = self.give_back
        loop = asyncio.get_running_loop()
        loop.call_later(FINISH_S_MAX, self._close_unfinished, connection)

    @staticmethod
    def _close_unfinished(connection: Connection) -> None:
        if connection.when_whole is not None:
            connection.when_whole = None
            connection.close()

    def close(self) -> None:
        """Close the idle connections; those in use close with their exchange."""
        self._closed = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _take_idle(self) -> Connection | None:
        oldest = asyncio.get_running_loop().time() - IDLE_S_MAX
        while self._idle:
            connection = self._idle.pop()
            if connection.open and connection.idle_since > oldest:
                connection.begin()
                return connection
            connection.close()
        return None

    def _request(self, method: str, path: str, body: bytes, traceparent: str | None) -> bytes:
        head = f"{method} {self._origin.path}{path} HTTP/1.1\r\n".encode("latin-1") + self._fixed
        if traceparent is not None:
            head += b"\r\ntraceparent: " + traceparent.encode("ascii")
        if not body:
            return head + b"\r\n\r\n"
        return b"%b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
            head,
            len(body),
            body,
        )
