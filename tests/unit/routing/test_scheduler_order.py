"""Scheduler: who is next, and where a request goes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from inferd.clock import monotonic
from inferd.errors import DeadlineExceeded
from inferd.inference import Priority, Usage
from tests.unit.routing.clients import NONE, Client, at_rest, end_all, request, scheduler, turns


async def test_batch_is_granted_only_when_nothing_interactive_waits() -> None:
    pool = scheduler()
    pool.target_up("w-0", 1)
    log: list[Client] = []
    async with asyncio.TaskGroup() as group:
        clients = [Client(group, pool, request(), log=log)]
        clients += [
            Client(group, pool, request(priority=priority), log=log)
            for priority in [Priority.BATCH] * 2 + [Priority.INTERACTIVE] * 2
        ]
        while len(log) < 5:
            await turns()
            await log[-1].end()
        await end_all(clients)
    assert [client.request.priority.value for client in log] == [
        "interactive",
        "interactive",
        "interactive",
        "batch",
        "batch",
    ]


async def test_a_retry_goes_before_its_team_to_another_worker_even_if_the_queue_is_full() -> None:
    pool = scheduler(waiting_max=3)
    pool.target_up("w-0", 1)
    pool.target_up("w-1", 1)
    log: list[Client] = []
    async with asyncio.TaskGroup() as group:
        clients = [Client(group, pool, request(), log=log) for _ in range(5)]
        await turns()
        retry = Client(group, pool, request(), excluded=frozenset({"w-0"}), log=log)
        await turns()
        on_1 = next(client for client in clients if client.target == "w-1")
        await on_1.end()
        await turns()
        assert retry.target == "w-1"
        assert log[-1] is retry
        await end_all([*clients, retry])
    assert at_rest(pool)


async def test_others_use_the_worker_that_a_waiting_retry_must_avoid() -> None:
    pool = scheduler()
    pool.target_up("w-0", 1)
    pool.target_up("w-1", 1)
    async with asyncio.TaskGroup() as group:
        clients = [Client(group, pool, request()) for _ in range(2)]
        await turns()
        retry = Client(group, pool, request(), excluded=frozenset({"w-0"}))
        other = Client(group, pool, request())
        await turns()
        await next(client for client in clients if client.target == "w-0").end()
        await turns()
        assert other.target == "w-0"
        assert not retry.running.is_set()
        await end_all([*clients, retry, other])
    assert at_rest(pool)


async def test_many_choices_are_not_starved_by_single_ones() -> None:
    """A stream of single requests keeps both workers busy; eight slots at once still come."""
    pool = scheduler(wait_s_max=600.0)
    pool.target_up("w-0", 8)
    pool.target_up("w-1", 8)
    served = 0

    async def single(lasts_s: float) -> None:
        nonlocal served
        async with pool.ticket(request("many"), 1, NONE):
            await asyncio.sleep(lasts_s)
            served += 1

    async with asyncio.TaskGroup() as group:
        for number in range(400):
            group.create_task(single(1.0 + number % 7 * 0.13))
        await asyncio.sleep(2.5)
        start = monotonic()
        async with pool.ticket(request("wide", choices=8), 1, NONE) as lease:
            assert lease.slots == 8
            assert monotonic() - start < 4.0
            before = served
            await asyncio.sleep(2.0)
            assert served > before, "the other worker went on"
    assert served == 400
    assert at_rest(pool)


async def test_a_wide_request_that_gives_up_lets_the_others_through() -> None:
    pool = scheduler()
    pool.target_up("w-0", 2)
    async with asyncio.TaskGroup() as group:
        first = Client(group, pool, request())
        wide = Client(group, pool, request(choices=2))
        third = Client(group, pool, request())
        await turns()
        assert not third.running.is_set()
        wide.task.cancel()
        await turns()
        assert third.running.is_set()
        hurried = Client(group, pool, request(choices=2, wait_s=5.0))
        await third.end()
        fourth = Client(group, pool, request())
        await turns()
        assert not fourth.running.is_set()
        await asyncio.sleep(5.0)
        assert isinstance(hurried.error, DeadlineExceeded)
        assert fourth.running.is_set()
        await end_all([first, fourth])
    assert at_rest(pool)


async def test_shares_of_a_contended_pool_are_as_the_weights(rng: random.Random) -> None:
    pool = scheduler(rng, wait_s_max=600.0)
    pool.target_up("w-0", 4)
    pool.target_up("w-1", 4)
    tokens: Counter[str] = Counter()
    weights = {"one": 1, "two": 2, "four": 4}
    stop = False

    async def work(team: str) -> None:
        while not stop:
            asked = request(team, output_tokens=rng.randrange(1, 2_000))
            async with pool.ticket(asked, weights[team], NONE) as lease:
                tokens[team] += lease.tokens
                await asyncio.sleep(lease.tokens / 1_000)

    async with asyncio.TaskGroup() as group:
        for team in weights:
            for _ in range(30):
                group.create_task(work(team))
        await asyncio.sleep(600)
        stop = True
    for team, weight in weights.items():
        assert tokens[team] / sum(tokens.values()) == pytest.approx(weight / 7, rel=0.05)
    assert at_rest(pool)


async def test_corrected_leases_share_by_what_was_used() -> None:
    """Two teams use the same; one claims forty times as much. Both get half."""
    pool = scheduler()
    pool.target_up("w-0", 8)
    served: Counter[str] = Counter()
    stop = False

    async def work(team: str, claim: int) -> None:
        while not stop:
            async with pool.ticket(request(team, output_tokens=claim), 1, NONE) as lease:
                await asyncio.sleep(1)
                served[team] += 1
            lease.correct(Usage(100, 0, 50))
            lease.correct(Usage(10**9))

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(work("loud", 4_000))
            group.create_task(work("exact", 50))
        await asyncio.sleep(100)
        served.clear()
        await asyncio.sleep(400)
        stop = True
    assert served["loud"] == pytest.approx(served["exact"], rel=0.05)


async def test_requests_spread_over_workers_by_tokens(rng: random.Random) -> None:
    pool = scheduler(rng)
    for number in range(8):
        pool.target_up(f"w-{number}", 256)
    async with asyncio.TaskGroup() as group:
        clients = [
            Client(group, pool, request(output_tokens=rng.randrange(1, 2_000))) for _ in range(400)
        ]
        await turns()
        loads = [pool.outstanding(target) for target in pool.ready_targets]
        assert max(loads) / (sum(loads) / 8) <= 1.1
        await end_all(clients)
