"""One listening socket and its connections.

The socket is bound before anything else starts, so that a taken port is told at once. Signals are
the application's: who runs a listener says when it is to `stop`, and when the grace is over.
"""

from __future__ import annotations

import asyncio
import errno
import socket

from starlette.types import ASGIApp

from inferd.api.http_protocol import ConnectionLimits, InferdProtocol, Served
from inferd.config.address import Address
from inferd.errors import StartError

BACKLOG = 2_048
UNSENT_BYTES_MAX = 65_536
"""What the kernel takes beyond what a client's own kernel has room for. Without a bound it would
hold megabytes for a client that does not read, and hide from us for long that it does not."""


class Listener:
    """Bound at once, serving in `run`, closed by `stop`."""

    def __init__(self, address: Address, field: str) -> None:
        """Bind. `field` is the key of inferd.toml that an error names.

        Raises:
            StartError: the port is taken, the address is not ours, or the port needs privileges.
        """
        self._socket = _bind(address, field)
        self._served: Served | None = None
        self._stopped = asyncio.Event()
        self.address = Address(address.host, self._socket.getsockname()[1])
        """Where it listens; the port is the real one, also if any free one was asked for."""

    async def run(self, app: ASGIApp, limits: ConnectionLimits) -> None:
        """Serve `app` until `stop`, then until every connection has ended."""
        async with asyncio.TaskGroup() as group:
            served = self._served = Served(app, limits, group)
            listening = await served.loop.create_server(
                lambda: InferdProtocol(served), sock=self._socket, backlog=BACKLOG
            )
            try:
                await self._stopped.wait()
                listening.close()
                for connection in list(served.connections):
                    connection.shut_down()
                await served.empty.wait()
            finally:  # cancelled, it would leave all of them open
                listening.close()
                self.force()

    def stop(self) -> None:
        """Take no new connection; `run` returns when those that are open have ended."""
        self._stopped.set()

    def force(self) -> None:
        """Cut the connections that are still open: what they wait for ends as if they had left."""
        if self._served is not None:
            for connection in list(self._served.connections):
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
