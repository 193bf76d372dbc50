"""How fast a pool gets through batch work: with what is free, and only that."""

from __future__ import annotations

import asyncio

from inferd.inference import Priority
from tests.unit.routing.clients import Client, request, scheduler, turns


async def test_more_workers_are_faster_and_none_is_no_answer() -> None:
    pool = scheduler()
    assert pool.batch_speed(200) is None
    pool.target_up("w-0", 32)
    alone = pool.batch_speed(200)
    pool.target_up("w-1", 32)
    both = pool.batch_speed(200)
    assert alone is not None
    assert both is not None
    assert both.seconds(10_000, 10_000) * 2 == alone.seconds(10_000, 10_000)


async def test_interactive_requests_leave_less() -> None:
    pool = scheduler()
    pool.target_up("w-0", 8)
    idle = pool.batch_speed(200)
    async with asyncio.TaskGroup() as group:
        busy = [Client(group, pool, request(priority=Priority.INTERACTIVE)) for _ in range(4)]
        await turns()
        beside = pool.batch_speed(200)
        for client in busy:
            await client.end()
    assert idle is not None
    assert beside is not None
    assert beside.seconds(10_000, 10_000) > idle.seconds(10_000, 10_000)
