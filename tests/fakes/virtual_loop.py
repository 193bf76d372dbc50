"""An event loop whose clock jumps to the next timer when nothing is ready.

A day of sleeps and timeouts runs in milliseconds, in the order a real day would have. Threads,
sockets and processes have no place on it: their work takes real time, which this clock does not
see. When every task waits and no timer is left, nothing can ever happen again: that is `Deadlock`.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

START_S = 1_024.0
"""Where the clock begins: not zero, so that no test passes because a time was falsy."""


class Deadlock(AssertionError):
    """Every task waits for another one."""


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting `timeout` seconds, moves the clock by them."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = START_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Deadlock(_waiting())
            # Whole nanoseconds, so that a thousand steps of 0.1 s are 100 s.
            self.now_s = round(self.now_s + timeout, 9)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` starts at `START_S` and moves only by jumps from timer to timer."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s


def _waiting() -> str:
    tasks = asyncio.all_tasks(asyncio.get_running_loop())
    return "\n".join(
        [
            "every task waits and no timer is left:",
            *(f"  {task.get_name()} at {_innermost(task)}" for task in tasks),
            "a test with threads, sockets or processes needs @pytest.mark.real_time",
        ]
    )


def _innermost(task: asyncio.Task[Any]) -> str:
    where = "an unknown place"
    awaited: Any = task.get_coro()
    while frame := getattr(awaited, "cr_frame", None):
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        awaited = awaited.cr_await
    return where
