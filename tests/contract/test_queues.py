"""The engine's own queue, on both engines: bounds, eviction, order, preemption."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from uuid import uuid4

import orjson
import pytest

from tests.contract.client import Client, OpenStream, idle_after
from tests.contract.raw_http import RawAnswer
from tests.fakes.engines import EngineProcess

pytestmark = pytest.mark.real_time

RUNNING, WAITING = 2, 3


async def fill(client: Client, stack: AsyncExitStack, priority: int = 0) -> list[OpenStream]:
    """Take every slot and every place in the queue."""
    streams = []
    prefix = uuid4().hex
    for count in range(1, RUNNING + WAITING + 1):
        body = client.holding(f"Place {count}", priority=priority, rid=f"{prefix}-{count}")
        streams.append(await stack.enter_async_context(client.stream(body)))
        await client.until(min(count, RUNNING), max(0, count - RUNNING))
    return streams


async def test_a_full_queue_refuses_at_once(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client, AsyncExitStack() as stack:
        await fill(client, stack)
        refused = await client.ask(client.chat(max_tokens=1))
        assert refused.status == 503
        assert orjson.loads(refused.body) == {
            "object": "error",
            "message": "The request queue is full.",
            "type": "503",
            "param": None,
            "code": 503,
        }
        assert "retry-after" not in refused.head.lower()
        await client.abort(abort_all=True)


async def test_a_full_queue_refuses_a_stream_inside_a_200(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client, AsyncExitStack() as stack:
        await fill(client, stack)
        told = await client.told(client.chat(max_tokens=1))
        assert told.error == {
            "object": "error",
            "message": "The request queue is full.",
            "type": "SERVICE_UNAVAILABLE",
            "param": None,
            "code": 503,
        }
        assert told.usage["total_tokens"] == 0
        assert told.done
        await client.abort(abort_all=True)


async def test_a_higher_priority_evicts_the_newest_of_the_lowest(
    shared_engine: EngineProcess,
) -> None:
    async with idle_after(shared_engine) as client, AsyncExitStack() as stack:
        *_, newest = await fill(client, stack)
        # Above the queue's 0, but not so far above that it would preempt what runs.
        body = client.chat(priority=5, max_tokens=1, rid="higher")
        await stack.enter_async_context(client.stream(body))
        await newest.started()
        told = await newest.rest()
        assert told.error is not None
        assert told.error["message"] == "The request is aborted by a higher priority request."
        await client.abort(abort_all=True)


async def test_the_higher_priority_runs_first(shared_engine: EngineProcess) -> None:
    async with (
        idle_after(shared_engine) as client,
        AsyncExitStack() as stack,
        asyncio.TaskGroup() as group,
    ):
        for index in range(RUNNING):
            body = client.holding(rid=f"first-{index}")
            await stack.enter_async_context(client.stream(body))
        await client.until(RUNNING)
        order: list[int] = []
        both = asyncio.Event()

        async def wait_for(priority: int) -> None:
            await client.told(client.chat(f"p {priority}", priority=priority, max_tokens=30))
            order.append(priority)
            if len(order) == 2:
                both.set()

        for waiting, priority in enumerate((1, 5), start=1):
            group.create_task(wait_for(priority))
            await client.until(RUNNING, waiting)
        await client.abort(rid="first-0")
        async with asyncio.timeout(20):
            await both.wait()
        assert order == [5, 1]
        await client.abort(abort_all=True)


async def test_preemption_needs_more_than_the_threshold(shared_engine: EngineProcess) -> None:
    async with (
        idle_after(shared_engine) as client,
        AsyncExitStack() as stack,
        asyncio.TaskGroup() as group,
    ):
        for index in range(RUNNING):
            body = client.holding(rid=f"low-{index}")
            await stack.enter_async_context(client.stream(body))
        await client.until(RUNNING)
        at_threshold: asyncio.Task[RawAnswer] = group.create_task(
            client.ask(client.chat(priority=10, max_tokens=2, rid="ten"))
        )
        await client.until(RUNNING, 1)
        above = await client.ask(client.chat(priority=11, max_tokens=2, rid="eleven"))
        assert above.status == 200
        assert not at_threshold.done()
        await client.abort(abort_all=True)


async def test_a_preempted_stream_goes_on_where_it_was(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client, AsyncExitStack() as stack:
        body = client.holding("Stay", rid="stay", priority=1)
        await stack.enter_async_context(client.stream(body))
        await client.until(1)
        body = client.chat("Go", rid="victim", max_tokens=60, ignore_eos=True)
        victim = await stack.enter_async_context(client.stream(body))
        await client.until(RUNNING)
        urgent = await client.told(client.chat("Now", priority=100, max_tokens=3, ignore_eos=True))
        assert urgent.usage["completion_tokens"] == 3
        await victim.started()
        told = await victim.rest()
        assert told.usage["completion_tokens"] == 60
        assert told.finish == "length"
        await client.abort(abort_all=True)
