"""A scope that others may end from outside: its deadline's timer, a client's lost connection.

What `asyncio.timeout` is for one reason and one timer, for any: the body is cancelled, and what was
given to `end` is raised in its place.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Ending:
    """The scope; entered once, by the task that runs its body.

    An error of the body's own comes out as it is, and so does the cancellation of an outer scope.
    """

    __slots__ = ("_cancelling", "_error", "_task")

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._error: Callable[[], Exception] | None = None

    def end(self, error: Callable[[], Exception]) -> None:
        """End the body with the error that `error` makes; only the first call counts."""
        if self._error is None and self._task is not None:
            self._error = error
            self._task.cancel()

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None, "entered inside a task"
        self._cancelling = self._task.cancelling()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if self._error is None or task is None:
            return
        if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self._error() from error
