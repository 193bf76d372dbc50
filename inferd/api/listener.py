"""One listening socket and the uvicorn server behind it.

The socket is bound before anything else starts, so that a taken port is told at once. uvicorn's
signal handling and lifespan are off: the process has one owner, and it is not uvicorn.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from inferd.api.http_protocol import ConnectionLimits, InferdProtocol, protocol_class
from inferd.config.address import Address
from inferd.errors import StartError

BACKLOG = 2_048
UNSENT_BYTES_MAX = 65_536
"""What the kernel takes beyond what a client's own kernel has room for. Without a bound it would
hold megabytes for a client that does not read, and hide from us for long that it does not."""
DATE_S = 1.0
KEEP_ALIVE_S = 75
"""Longer than the idle time that clients' pools assume, so that it is they who close."""


class _Server(uvicorn.Server):
    """Told when to end, where uvicorn's own looks ten times a second whether it should."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._asked = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._asked.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # sets the date that answers carry
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._asked.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the application's."""
        yield


class Listener:
    """Bound at once, serving in `run`, closed by `stop`."""

    def __init__(self, address: Address, field: str) -> None:
        """Bind. `field` is the key of inferd.toml that an error names.

        Raises:
            StartError: the port is taken, the address is not ours, or the port needs privileges.
        """
        self._socket = _bind(address, field)
        self._server: _Server | None = None
        self.address = Address(address.host, self._socket.getsockname()[1])
        """Where it listens; the port is the real one, also if any free one was asked for."""

    async def run(self, app: ASGIApp, limits: ConnectionLimits) -> None:
        """Serve `app` until `stop`, then until every connection has ended."""
        config = uvicorn.Config(
            app,
            http=protocol_class(limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # nothing here asks where a client is
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._server = _Server(config)
        try:
            await self._server.serve(sockets=[self._socket])
        finally:  # cancelled, it would leave all of them open
            for listening in self._server.servers:
                listening.close()
            self.force()

    def stop(self) -> None:
        """Take no new connection; `run` returns when those that are open have ended."""
        if self._server is not None:
            self._server.stop()

    def force(self) -> None:
        """Cut the connections that are still open: what they wait for ends as if they had left."""
        if self._server is not None:
            for connection in list(self._server.server_state.connections):
                assert isinstance(connection, InferdProtocol), "made by `protocol_class`"
                connection.transport.abort()

    def close(self) -> None:
        self._socket.close()


def _bind(address: Address, field: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
        listening.bind((address.host, address.port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise StartError(f"{field}: {_explain(address, error)}") from error
    listening.setblocking(False)  # noqa: FBT003 - the standard library's signature
    return listening


def _explain(address: Address, error: OSError) -> str:
    where = f"{address.host}:{address.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is taken by another process. Stop it, or choose another port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{where} is not an address of this machine. Use one that is, or 0.0.0.0 for all."
    if error.errno == errno.EACCES:
        return f"{where} needs privileges that inferd does not have. Use a port above 1023."
    return f"cannot listen on {where}: {error.strerror}."
