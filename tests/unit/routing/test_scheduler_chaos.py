"""Scheduler: any mix of cancels, failures, retries and flapping workers ends with nothing left."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from inferd.errors import DeadlineExceeded, LimitError, NoWorker, Preempted
from inferd.inference import InferenceRequest, Priority, Usage
from inferd.routing.lease import Lease
from tests.unit.routing.clients import NONE, at_rest, request, scheduler

WAITING_MAX = 20
WAIT_S_MAX = 20.0


class Chaos:
    """Clients and workers that do anything at any time, all drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.pool = scheduler(
            self.chance, waiting_max=WAITING_MAX, waiting_per_team_max=10, wait_s_max=WAIT_S_MAX
        )
        self.ended: Counter[str] = Counter()

    def any_request(self) -> InferenceRequest:
        return request(
            self.chance.choice(["a", "b", "c"]),
            choices=self.chance.choice([1, 1, 1, 2, 9]),
            priority=self.chance.choice(list(Priority)),
            wait_s=self.chance.choice([0.0, 5.0, 1e6, 1e6, 1e6, 1e6]),
            output_tokens=self.chance.randrange(1, 4_000),
        )

    async def client(self) -> None:
        asked = self.any_request()
        weight = self.chance.randrange(1, 5)
        excluded = NONE
        for _ in range(2):
            try:
                async with self.pool.ticket(asked, weight, excluded) as lease:
                    excluded = frozenset({lease.target})
                    await self.use(lease)
                self.ended["served"] += 1
                return
            except LookupError:
                continue
            except (LimitError, NoWorker, Preempted, DeadlineExceeded) as error:
                self.ended[type(error).__name__] += 1
                return

    async def use(self, lease: Lease) -> None:
        assert lease.queue_wait_s <= WAIT_S_MAX
        await asyncio.sleep(self.chance.expovariate(0.5))
        if self.chance.random() < 0.3:
            raise LookupError
        if self.chance.random() < 0.5:
            lease.correct(Usage(self.chance.randrange(4_000)))

    async def worker(self, name: str) -> None:
        for _ in range(120):
            act = self.chance.random()
            if act < 0.6:
                self.pool.target_up(name, self.chance.randrange(1, 6))
            elif act < 0.8:
                self.pool.target_draining(name)
            else:
                self.pool.target_down(name)
            self.check()
            await asyncio.sleep(self.chance.expovariate(1 / 20))

    async def arrivals(self, group: asyncio.TaskGroup) -> None:
        tasks: list[asyncio.Task[None]] = []
        for _ in range(4_000):
            tasks.append(group.create_task(self.client()))
            if self.chance.random() < 0.4:
                tasks.pop(self.chance.randrange(max(0, len(tasks) - 20), len(tasks))).cancel()
            soon = self.chance.random() < 0.5
            await asyncio.sleep(0 if soon else self.chance.expovariate(2))
            self.check()

    def check(self) -> None:
        snapshot = self.pool.snapshot()
        waiting = list(self.pool._queue)
        for one in snapshot.targets:
            assert one.inflight >= 0
            assert one.outstanding_tokens >= 0
        retries = sum(bool(one.excluded) for one in waiting)
        assert all(depth <= WAITING_MAX + retries for depth in snapshot.waiting.values())
        if not self.pool.ready_targets:
            assert not waiting
        if any(one.ready and one.inflight < one.inflight_max for one in snapshot.targets):
            # Room and waiters only together where a wide request or a retry holds the room.
            assert not waiting or any(one.asked.choices > 1 or one.excluded for one in waiting)


@pytest.mark.parametrize("seed", range(8))
async def test_nobody_waits_too_long_no_count_is_negative_and_nothing_is_left(seed: int) -> None:
    chaos = Chaos(seed)
    async with asyncio.TaskGroup() as group:
        for name in ("w-0", "w-1", "w-2"):
            group.create_task(chaos.worker(name))
        await chaos.arrivals(group)
    assert at_rest(chaos.pool)
    assert chaos.pool.inflight == chaos.pool.leases_open == 0
    assert chaos.ended["served"] > 400, chaos.ended
    assert all(chaos.ended[name] for name in ("QueueFull", "WaitTooLong", "NoWorker")), chaos.ended
