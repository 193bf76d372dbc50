"""A request lives no longer than its client: the connection's loss ends it, from wherever it waits.

What must happen while nothing is sent (keep-alive comments, the cut of a client that does not read)
runs on a timer of the same scope, so that a stream costs no task beside its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, Self

from inferd.ending import Ending

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from starlette.types import Scope

SCOPE_KEY: Final = "inferd.client"


class ClientGoneError(Exception):
    """Nobody is there to answer to. Never rendered; the access log says 499."""


class Client(Protocol):
    """The other end of one request, past what ASGI tells of it. The server puts it in the scope."""

    @property
    def ready(self) -> bool:
        """The head of a chunked answer has been sent, and the client keeps up."""

    @property
    def write_chunk(self) -> Callable[[bytes], object]:
        """As `write`, for a chunk that has its frame."""

    @property
    def gone(self) -> bool:
        """Its connection is lost."""

    @property
    def unread_bytes(self) -> int:
        """Written here, and not yet taken by its kernel."""

    def tell_when_gone(self, told: Callable[[], object] | None) -> None:
        """Whom to call when the connection is lost; one at a time."""

    def write(self, data: bytes) -> None:
        """A chunk of the answer, at once: only while `ready`, and never of no bytes."""

    def abort(self) -> None:
        """Cut the connection; what is unread is lost."""


class Ticker(Protocol):
    """Something to do while the client is there and silent."""

    def next_tick(self) -> float:
        """Loop time of the next `tick`."""

    def tick(self) -> None:
        """Called then; must return soon."""


def client_of(scope: Scope) -> Client:
    """Who sent the request of this scope."""
    client: Client = scope[SCOPE_KEY]
    return client


class WhileClientWaits(Ending):
    """Ends its body when the client leaves. Of an error of the body nothing is lost.

    Raises, on leaving:
        ClientGoneError: the connection was closed, by the client or by `ticker`.
    """

    __slots__ = ("_client", "_loop", "_ticker", "_timer")

    def __init__(self, client: Client, ticker: Ticker | None = None) -> None:
        super().__init__()
        self._client = client
        self._ticker = ticker
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        self._client.tell_when_gone(self._gone)
        if self._client.gone:
            self._gone()
        if self._ticker is not None:
            self._loop = asyncio.get_running_loop()
            self._timer = self._loop.call_at(self._ticker.next_tick(), self._tick, self._ticker)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.tell_when_gone(None)
        if self._timer is not None:
            self._timer.cancel()
        super().__exit__(kind, error, trace)

    def _gone(self) -> None:
        self.end(ClientGoneError)

    def _tick(self, ticker: Ticker) -> None:
        ticker.tick()
        self._timer = self._loop.call_at(ticker.next_tick(), self._tick, ticker)
