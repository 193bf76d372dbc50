"""Scheduler: how waits end, and what is refused at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from inferd.clock import monotonic
from inferd.config.schema import Queue
from inferd.errors import DeadlineExceeded, NoWorker, QueueFull, ShuttingDown, WaitTooLong
from inferd.inference import Priority
from inferd.routing.scheduler import Scheduler
from tests.unit.routing.clients import NONE, Client, at_rest, end_all, request, scheduler, turns


async def test_a_wait_ends_at_the_queues_limit_with_a_429() -> None:
    pool = scheduler(wait_s_max=30.0)
    pool.target_up("w-0", 1)
    async with asyncio.TaskGroup() as group:
        first = Client(group, pool, request())
        await turns()
        start = monotonic()
        with pytest.raises(WaitTooLong, match="within 30 s") as refused:
            async with pool.ticket(request(), 1, NONE):
                pass
        assert monotonic() - start == 30.0
        assert (refused.value.status, refused.value.code) == (429, "overloaded")
        assert refused.value.retry_after_s is not None
        assert 1 <= refused.value.retry_after_s <= 30
        await first.end()
    assert at_rest(pool)


async def test_a_wait_ends_at_the_requests_own_deadline_if_that_is_sooner() -> None:
    pool = scheduler(wait_s_max=30.0)
    pool.target_up("w-0", 1)
    async with asyncio.TaskGroup() as group:
        first = Client(group, pool, request())
        await turns()
        start = monotonic()
        with pytest.raises(DeadlineExceeded):
            async with pool.ticket(request(wait_s=12.0), 1, NONE):
                pass
        assert monotonic() - start == 12.0
        await first.end()
    with pytest.raises(DeadlineExceeded):
        async with pool.ticket(request(wait_s=0.0), 1, NONE):
            pass
    assert at_rest(pool)


async def test_without_a_ready_worker_a_request_is_refused_at_once() -> None:
    pool = scheduler()
    start = monotonic()
    with pytest.raises(NoWorker, match="No worker of `m@1`") as refused:
        async with pool.ticket(request(), 1, NONE):
            pass
    assert (monotonic(), refused.value.status) == (start, 503)
    pool.target_up("w-0", 1)
    pool.target_draining("w-0")
    with pytest.raises(NoWorker):
        async with pool.ticket(request(), 1, NONE):
            pass


@pytest.mark.parametrize("leave", [Scheduler.target_down, Scheduler.target_draining])
async def test_when_the_last_worker_goes_those_who_wait_are_told_at_once(
    leave: Callable[[Scheduler, str], None],
) -> None:
    pool = scheduler()
    pool.target_up("w-0", 1)
    async with asyncio.TaskGroup() as group:
        first = Client(group, pool, request())
        waiting = [Client(group, pool, request()) for _ in range(10)]
        await turns()
        leave(pool, "w-0")
        start = monotonic()
        await asyncio.wait([client.task for client in waiting])
        assert monotonic() == start
        assert all(isinstance(client.error, NoWorker) for client in waiting)
        assert not first.task.done()
        await first.end()
    assert at_rest(pool)


async def test_when_another_worker_is_left_those_who_wait_go_on_waiting() -> None:
    pool = scheduler()
    pool.target_up("w-0", 1)
    pool.target_up("w-1", 1)
    async with asyncio.TaskGroup() as group:
        running = [Client(group, pool, request()) for _ in range(2)]
        waiting = Client(group, pool, request())
        await turns()
        pool.target_down("w-0")
        await turns()
        assert not waiting.task.done()
        await end_all(running)
        await turns()
        assert waiting.target == "w-1"
        await waiting.end()
    assert at_rest(pool)


async def test_a_full_queue_refuses_with_the_wait_that_service_times_promise() -> None:
    pool = scheduler(waiting_max=4)
    pool.target_up("w-0", 2)
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            async with pool.ticket(request(), 1, NONE):
                await asyncio.sleep(4)
        clients = [Client(group, pool, request()) for _ in range(6)]
        await turns()
        with pytest.raises(QueueFull, match="4 interactive requests wait") as refused:
            async with pool.ticket(request(), 1, NONE):
                pass
        # 4 wait and this one would be the fifth; 2 at a time take 4 s.
        assert refused.value.retry_after_s == pytest.approx(10.0)
        assert (refused.value.status, refused.value.code) == (429, "overloaded")
        async with asyncio.timeout(10.0):
            for batch in (clients[:2], clients[2:4], clients[4:]):
                await asyncio.sleep(3)
                await end_all(batch)
        async with pool.ticket(request(), 1, NONE):
            pass
    assert at_rest(pool)


async def test_batch_is_told_to_wait_for_everyone_before_it() -> None:
    pool = scheduler(waiting_max=3)
    pool.target_up("w-0", 1)
    async with asyncio.TaskGroup() as group:
        async with pool.ticket(request(), 1, NONE):
            await asyncio.sleep(2)
        clients = [Client(group, pool, request()) for _ in range(3)]
        clients += [Client(group, pool, request(priority=Priority.BATCH)) for _ in range(4)]
        await turns()
        refused = clients[-1].error
        assert isinstance(refused, QueueFull)
        # 2 interactive and 3 batch requests wait, one at a time takes 2 s.
        assert refused.retry_after_s == pytest.approx(12.0)
        await end_all(clients)
    assert at_rest(pool)


async def test_one_team_cannot_fill_the_queue_for_the_others() -> None:
    pool = scheduler(waiting_max=10, waiting_per_team_max=2)
    pool.target_up("w-0", 1)
    async with asyncio.TaskGroup() as group:
        clients = [Client(group, pool, request("loud")) for _ in range(5)]
        clients.append(Client(group, pool, request("quiet")))
        await turns()
        refused = [client for client in clients if client.error]
        assert len(refused) == 2
        assert all("of team `loud`" in str(client.error) for client in refused)
        assert pool.depth(Priority.INTERACTIVE) == 3
        await end_all(clients)
    assert at_rest(pool)


async def test_batch_that_waits_does_not_take_the_places_of_interactive_requests() -> None:
    pool = scheduler(waiting_max=2)
    pool.target_up("w-0", 1)
    async with asyncio.TaskGroup() as group:
        clients = [Client(group, pool, request(priority=Priority.BATCH)) for _ in range(4)]
        clients.append(Client(group, pool, request()))
        await turns()
        assert [isinstance(client.error, QueueFull) for client in clients] == [
            False,
            False,
            False,
            True,
            False,
        ]
        await end_all(clients)


async def test_a_retry_with_nowhere_else_to_go_is_refused_at_once() -> None:
    pool = scheduler()
    pool.target_up("w-0", 1)
    with pytest.raises(NoWorker, match="No other worker"):
        async with pool.ticket(request(), 1, frozenset({"w-0"})):
            pass
    pool.target_up("w-1", 1)
    async with asyncio.TaskGroup() as group:
        clients = [Client(group, pool, request()) for _ in range(2)]
        await turns()
        retry = Client(group, pool, request(), excluded=frozenset({"w-0"}))
        waiting = Client(group, pool, request())
        await turns()
        pool.target_down("w-1")
        await turns()
        assert isinstance(retry.error, NoWorker)
        assert not waiting.task.done()
        await end_all([*clients, waiting])
    assert at_rest(pool)


async def test_failing_those_who_wait_gives_each_its_own_error() -> None:
    pool = scheduler()
    pool.target_up("w-0", 1)
    async with asyncio.TaskGroup() as group:
        first = Client(group, pool, request())
        waiting = [Client(group, pool, request()) for _ in range(3)]
        await turns()
        pool.fail_waiting(ShuttingDown("inferd is shutting down.", retry_after_s=10))
        await turns()
        errors = [client.error for client in waiting]
        assert all(isinstance(error, ShuttingDown) for error in errors)
        assert {(str(error), error.retry_after_s) for error in errors if error} == {
            ("inferd is shutting down.", 10)
        }
        assert len({id(error) for error in errors}) == 3
        assert not first.task.done()
        await first.end()
    assert at_rest(pool)


async def test_new_bounds_hold_for_what_comes() -> None:
    pool = scheduler()
    pool.target_up("w-0", 1)
    async with asyncio.TaskGroup() as group:
        clients = [Client(group, pool, request()) for _ in range(4)]
        await turns()
        pool.update(Queue(waiting_max=2, waiting_per_team_max=2, wait_s_max=5.0))
        late = Client(group, pool, request())
        await turns()
        assert isinstance(late.error, QueueFull)
        assert pool.depth(Priority.INTERACTIVE) == 3
        await end_all(clients)
