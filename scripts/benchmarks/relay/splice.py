"""The least that a Python process between client and worker can do: bytes from one to the other.

`python -m scripts.benchmarks.relay.splice PORT UPSTREAM_PORT`. No parsing, no back-pressure.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

from scripts.benchmarks.relay.native import HOST


class _Upward(asyncio.Protocol):
    """The connection to the worker."""

    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._client.close()


class _Downward(asyncio.Protocol):
    """The connection of a client; its bytes wait until the worker's is there."""

    def __init__(self, upstream_port: int, group: asyncio.TaskGroup) -> None:
        self._upstream_port = upstream_port
        self._group = group
        self._upward: asyncio.Transport | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = cast("asyncio.Transport", transport)
        self._group.create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        upward, _ = await loop.create_connection(
            lambda: _Upward(self._client), HOST, self._upstream_port
        )
        self._upward = upward
        upward.write(self._early)

    def data_received(self, data: bytes) -> None:
        if self._upward is None:
            self._early += data
        else:
            self._upward.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._upward is not None:
            self._upward.close()


async def serve(port: int, upstream_port: int) -> None:
    """Until cancelled."""
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        server = await loop.create_server(
            lambda: _Downward(upstream_port, group), HOST, port, backlog=8_192
        )
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
