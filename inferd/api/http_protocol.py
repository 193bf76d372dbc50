"""uvicorn's HTTP protocol with three things of ours: the transport, a bound, and our error bodies.

The transport in the scope lets a stream cut off a client that does not read; a graceful close would
wait for the very reader that does not come.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from inferd.api.error_body import render
from inferd.errors import InferdError, InvalidBody, QueueFull
from inferd.inference import new_request_id


def protocol_class(connections_max: int) -> type[asyncio.Protocol]:
    """The protocol of one listener that takes at most `connections_max` open connections."""

    class Bounded(InferdProtocol):
        limit = connections_max

    return Bounded


class InferdProtocol(HttpToolsProtocol):
    """One client connection."""

    limit: ClassVar[int] = 10_000

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limit:
            self._refuse(QueueFull("Too many open connections.", retry_after_s=1))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope["inferd.transport"] = self.transport

    def send_400_response(self, msg: str) -> None:
        del msg
        self._refuse(InvalidBody("The bytes received are not an HTTP request."))

    def _refuse(self, error: InferdError) -> None:
        """Answer without an application behind, and close."""
        rendered = render(error, new_request_id())
        lines = [b"HTTP/1.1 %d Refused" % rendered.status]
        lines += [name + b": " + value for name, value in rendered.headers]
        lines += [b"content-length: %d" % len(rendered.body), b"connection: close", b"", b""]
        self.transport.write(b"\r\n".join(lines) + rendered.body)
        self.transport.close()
