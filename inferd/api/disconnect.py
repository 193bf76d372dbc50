"""A request lives no longer than its client: one watcher per request, the only source of its end.

The watcher also drives what must happen while nothing is sent (keep-alive comments, the cut of a
client that does not read), so that a stream costs one task beside its own.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive


class ClientGoneError(Exception):
    """Nobody is there to answer to. Never rendered; the access log says 499."""


class Ticker(Protocol):
    """Something to do while the client is there and silent."""

    def next_tick(self) -> float:
        """Loop time of the next `tick`."""

    async def tick(self) -> None:
        """Called then; must return soon."""


@asynccontextmanager
async def while_client_waits(receive: Receive, ticker: Ticker | None = None) -> AsyncIterator[None]:
    """Cancel the body of the scope when the client leaves.

    An error of the body comes out as it is, not wrapped in a group, or the renderer would not know
    its type.

    Raises:
        ClientGoneError: the connection was closed, by the client or by `ticker`.
    """
    try:
        async with asyncio.TaskGroup() as group:
            watch = _until_gone(receive) if ticker is None else _watch(receive, ticker)
            watcher = group.create_task(watch)
            yield
            watcher.cancel()
    except BaseExceptionGroup as group_error:
        raise _single(group_error) from group_error.__cause__


async def _watch(receive: Receive, ticker: Ticker) -> None:
    while True:
        try:
            async with asyncio.timeout_at(ticker.next_tick()):
                await _until_gone(receive)
        except TimeoutError:
            await ticker.tick()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGoneError


def _single(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error that matters: the body's own, before that of the client's leaving."""
    errors = list(_leaves(group))
    for error in errors:
        if not isinstance(error, ClientGoneError):
            return error
    return errors[0]


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
