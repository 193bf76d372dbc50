"""Scheduler: leases are granted while there is room, and every one comes back."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from inferd.inference import Priority
from tests.unit.routing.clients import NONE, Client, at_rest, end_all, request, scheduler, turns


async def test_a_free_worker_is_leased_at_once_and_given_back_on_leaving() -> None:
    pool = scheduler()
    pool.target_up("w-0", 2)
    async with pool.ticket(request(), 1, NONE) as lease:
        assert (lease.target, lease.tokens, lease.slots) == ("w-0", 200, 1)
        assert (lease.reason, lease.queue_wait_s) == ("only_choice", 0.0)
        assert (pool.inflight, pool.outstanding("w-0"), pool.leases_of("w-0")) == (1, 200, 1)
    assert at_rest(pool)
    assert pool.outstanding("unknown") == pool.leases_of("unknown") == 0


async def test_an_error_inside_the_scope_gives_the_lease_back_too() -> None:
    pool = scheduler()
    pool.target_up("w-0", 1)
    with pytest.raises(LookupError):
        async with pool.ticket(request(), 1, NONE):
            raise LookupError
    assert at_rest(pool)


async def test_without_room_a_request_waits_until_a_lease_comes_back() -> None:
    pool = scheduler()
    pool.target_up("w-0", 1)
    async with asyncio.TaskGroup() as group:
        first = Client(group, pool, request())
        second = Client(group, pool, request())
        await asyncio.sleep(3)
        assert first.running.is_set()
        assert not second.running.is_set()
        assert pool.depth(Priority.INTERACTIVE) == 1
        await first.end()
        await turns()
        assert second.running.is_set()
        assert second.wait_s == 3.0
        await second.end()
    assert at_rest(pool)


async def test_who_is_cancelled_while_waiting_leaves_the_queue() -> None:
    pool = scheduler()
    pool.target_up("w-0", 1)
    async with asyncio.TaskGroup() as group:
        first = Client(group, pool, request())
        quitter = Client(group, pool, request())
        third = Client(group, pool, request())
        await turns()
        quitter.task.cancel()
        await turns()
        assert pool.depth(Priority.INTERACTIVE) == 1
        await first.end()
        await turns()
        assert third.running.is_set()
        await third.end()
    assert at_rest(pool)


async def test_a_lease_granted_to_someone_cancelled_in_the_same_moment_comes_back() -> None:
    """The future is resolved, the task has not resumed, then it is cancelled: it sees nothing."""
    pool = scheduler()
    pool.target_up("w-0", 1)
    async with asyncio.TaskGroup() as group:
        waiting = None
        async with pool.ticket(request(), 1, NONE):
            waiting = Client(group, pool, request())
            await turns()
        assert pool.inflight == 1
        waiting.task.cancel()
        await turns()
        assert waiting.target is None
    assert at_rest(pool)


async def test_a_grant_to_someone_who_was_just_cancelled_is_passed_on_and_charged_to_nobody() -> (
    None
):
    pool = scheduler()
    pool.target_up("w-0", 1)
    log: list[Client] = []
    async with asyncio.TaskGroup() as group:
        async with pool.ticket(request("other"), 1, NONE):
            quitter = Client(group, pool, request("a", output_tokens=1_000_000))
            await turns()
            clients = [Client(group, pool, request(team), log=log) for team in "aabb"]
            await turns()
            quitter.task.cancel()
        while len(log) < 4:
            await turns()
            await log[-1].end()
        await end_all(clients)
    assert [client.request.team for client in log[:2]] in (["a", "b"], ["b", "a"])
    assert at_rest(pool)


async def test_a_new_worker_serves_those_who_wait() -> None:
    pool = scheduler()
    pool.target_up("w-0", 1)
    async with asyncio.TaskGroup() as group:
        clients = [Client(group, pool, request()) for _ in range(4)]
        await turns()
        pool.target_up("w-1", 3)
        await turns()
        assert Counter(client.target for client in clients) == {"w-0": 1, "w-1": 3}
        assert set(pool.ready_targets) == {"w-0", "w-1"}
        await end_all(clients)
    assert at_rest(pool)


async def test_a_draining_worker_finishes_what_it_has_and_gets_nothing_new() -> None:
    pool = scheduler()
    pool.target_up("w-0", 4)
    pool.target_up("w-1", 4)
    async with asyncio.TaskGroup() as group:
        before = [Client(group, pool, request()) for _ in range(4)]
        await turns()
        pool.target_draining("w-0")
        after = [Client(group, pool, request()) for _ in range(2)]
        await turns()
        assert {client.target for client in after} == {"w-1"}
        assert pool.ready_targets == ("w-1",)
        assert pool.inflight == 6
        await end_all([*before, *after])
    assert at_rest(pool)


async def test_a_worker_that_flaps_with_streams_running_counts_right_afterwards() -> None:
    pool = scheduler()
    pool.target_up("w-0", 10)
    async with asyncio.TaskGroup() as group:
        old = [Client(group, pool, request()) for _ in range(10)]
        await turns()
        pool.target_down("w-0")
        pool.target_up("w-0", 10)
        new = [Client(group, pool, request()) for _ in range(3)]
        await turns()
        assert (pool.inflight, pool.outstanding("w-0")) == (3, 600)
        await end_all(old)
        assert (pool.inflight, pool.outstanding("w-0")) == (3, 600)
        await end_all(new)
    assert at_rest(pool)


async def test_choices_take_as_many_slots_and_at_most_all_of_a_worker() -> None:
    pool = scheduler()
    pool.target_up("w-0", 4)
    async with pool.ticket(request(choices=3), 1, NONE) as lease:
        assert (lease.slots, lease.tokens) == (3, 400)
    async with pool.ticket(request(choices=100), 1, NONE) as lease:
        assert lease.slots == 4
    assert at_rest(pool)


async def test_a_snapshot_says_who_waits_and_what_runs() -> None:
    pool = scheduler()
    pool.target_up("w-0", 1)
    pool.target_up("w-1", 1)
    pool.target_draining("w-1")
    async with asyncio.TaskGroup() as group:
        clients = [Client(group, pool, request(team)) for team in ("a", "b", "b")]
        clients.append(Client(group, pool, request("a", priority=Priority.BATCH)))
        await asyncio.sleep(2)
        snapshot = pool.snapshot()
        assert snapshot.pool == "m@1"
        assert snapshot.waiting == {Priority.INTERACTIVE: 2, Priority.BATCH: 1}
        assert snapshot.waiting_by_team == {"a": 1, "b": 2}
        assert (snapshot.oldest_wait_s, snapshot.lease_s, snapshot.leases_open) == (2.0, 2.0, 1)
        assert [(one.target, one.ready, one.inflight) for one in snapshot.targets] == [
            ("w-0", True, 1),
            ("w-1", False, 0),
        ]
        await end_all(clients)
