"""A client's end of a request, without a connection: `abort` is all that happens to it."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from inferd.api.disconnect import SCOPE_KEY


class ClientEnd:
    """An `inferd.api.disconnect.Client`."""

    def __init__(self) -> None:
        self.gone = False
        self.ready = False
        self.unread_bytes = 0
        self._told: Callable[[], object] | None = None

    def tell_when_gone(self, told: Callable[[], object] | None) -> None:
        self._told = told

    def write(self, data: bytes) -> None:
        raise AssertionError(f"not ready for {data!r}")

    def write_chunk(self, chunk: bytes) -> None:
        self.write(chunk)

    def abort(self) -> None:
        self.gone = True
        if self._told is not None:
            self._told()


def with_clients(app: ASGIApp) -> ASGIApp:
    """`app` behind a server whose clients stay."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault(SCOPE_KEY, ClientEnd())
        await app(scope, receive, send)

    return served
