"""A worker's calls. Goal: nobody goes on waiting for one that ends, and what was used is billed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from inferd import clock
from inferd.errors import ShuttingDown, WorkerUnreachable
from inferd.workers.client import ABANDON_S_MAX, Abandoned
from tests.fakes.scripted_worker import ScriptedWorker

PATH = "/v1/chat/completions"


def payload(tokens: int = 1_000) -> bytes:
    return orjson.dumps({"model": "m", "rid": "r", "stream": True, "max_tokens": tokens})


class Reading:
    """Reads an abandoned answer until its usage has come."""

    def __init__(self) -> None:
        self.done = False
        self.settled = 0

    def feed(self, data: bytes) -> bytes:
        self.done = self.done or b'"usage"' in data
        return data

    def settle(self) -> None:
        self.settled += 1


@asynccontextmanager
async def working() -> AsyncIterator[ScriptedWorker]:
    worker = ScriptedWorker("w")
    async with asyncio.TaskGroup() as group:
        service = group.create_task(worker.client.run())
        await asyncio.sleep(0)
        yield worker
        service.cancel()


async def abandoned(worker: ScriptedWorker) -> Reading:
    """An answer that its client has left in the middle."""
    reading = Reading()
    async with worker.client.exchange(PATH, payload()) as exchange:
        await exchange.head()
        await exchange.read()
        worker.client.abandon(Abandoned(exchange, "r", reading, reading.settle))
    return reading


async def test_who_is_connecting_when_all_are_told_is_told_too() -> None:
    async with working() as worker, asyncio.TaskGroup() as group:

        async def ask() -> None:
            with pytest.raises(ShuttingDown):
                async with worker.client.exchange(PATH, payload()):
                    pytest.fail("it was told before it was connected")

        group.create_task(ask())
        await asyncio.sleep(0)
        worker.client.fail_all(ShuttingDown("over"))
    assert worker.requests
    assert not worker.open


async def test_who_comes_after_all_were_told_is_served() -> None:
    async with working() as worker:
        worker.client.fail_all(WorkerUnreachable("lost"))
        async with worker.client.exchange(PATH, payload()) as exchange:
            assert await exchange.head() == 200


async def test_who_comes_after_the_end_is_told_at_once() -> None:
    async with working() as worker:
        async with worker.client.exchange(PATH, payload()) as exchange:
            worker.client.close(WorkerUnreachable("lost"))
            with pytest.raises(WorkerUnreachable, match="lost"):
                await exchange.head()
        with pytest.raises(WorkerUnreachable, match="lost"):
            async with worker.client.exchange(PATH, payload()):
                pytest.fail("nobody is there")
    assert len(worker.requests) == 1


async def test_settled_waits_for_the_usage_of_what_was_left() -> None:
    async with working() as worker:
        readings = [await abandoned(worker) for _ in range(3)]
        assert readings[-1].settled == 0
        await worker.client.settled()
        assert [(reading.done, reading.settled) for reading in readings] == [(True, 1)] * 3
    assert not worker.open


async def test_settled_does_not_wait_for_an_engine_that_does_not_abort() -> None:
    async with working() as worker:
        worker.ignores_aborts = True
        reading = await abandoned(worker)
        begun = clock.monotonic()
        await worker.client.settled()
        assert clock.monotonic() - begun <= ABANDON_S_MAX
    assert (reading.done, reading.settled) == (False, 1)


async def test_nothing_left_is_settled_already() -> None:
    async with working() as worker:
        begun = clock.monotonic()
        await worker.client.settled()
        assert clock.monotonic() == begun
