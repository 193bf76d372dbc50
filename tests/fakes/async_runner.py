"""Runs one `async def` test: on virtual time, or on uvloop with a limit in real seconds.

A test owns what it starts. A task that outlives it, or an error that only reached the loop's
exception handler, fails the test although its own body passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from tests.fakes.virtual_loop import VirtualTimeLoop

LAST_TURNS = 10
"""Turns of the loop that a finished test leaves to its last callbacks."""


def run_virtual(test: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(_watched(test, None))


def run_real_time(test: Callable[[], Awaitable[None]], timeout_s: float) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_watched(test, timeout_s))


async def _watched(test: Callable[[], Awaitable[None]], timeout_s: float | None) -> None:
    complaints: list[str] = []

    def complain(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        complaints.append(f"{context['message']}: {context.get('exception')!r}")

    asyncio.get_running_loop().set_exception_handler(complain)
    async with asyncio.timeout(timeout_s):
        await test()
    for task in await _leftovers():
        complaints.append(f"a task outlived the test: {task!r}")
        task.cancel()
    if complaints:
        pytest.fail("\n".join(complaints), pytrace=False)


async def _leftovers() -> set[asyncio.Task[Any]]:
    for _ in range(LAST_TURNS):
        if len(asyncio.all_tasks()) == 1:
            break
        await asyncio.sleep(0)
    return asyncio.all_tasks() - {asyncio.current_task()}
