"""The decision as a whole, with predicted first tokens: affinity, lateness, ranks, preemption."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from dataclasses import replace

import pytest

from inferd.clock import monotonic
from inferd.config.schema import Queue, Targets
from inferd.errors import InferdError, Preempted, Shed, WaitTooLong
from inferd.inference import InferenceRequest, Prefix, Priority, Usage
from inferd.routing.cost_model import H100_70B_TP8
from inferd.routing.lease import Lease
from inferd.routing.scheduler import Scheduler
from inferd.routing.serving import Serving
from tests.unit.routing.clients import Client, at_rest, end_all, request, turns

COUNT = int(os.environ.get("INFERD_CHAOS", "5000"))
"""Arrivals of the long test; 100,000 take some minutes."""
SERVING = Serving(
    placement="predicted_ttft", cost=H100_70B_TP8, refuse_late=True, kv_tokens=1_000_000
)


def pool(*targets: str, slots: int = 64, serving: Serving = SERVING) -> Scheduler:
    made = Scheduler("m@1", Queue(wait_s_max=30.0), random.Random(1), serving)
    for target in targets:
        made.target_up(target, slots)
    return made


def prompt(tokens: int, first_key: int = 1, team: str = "search") -> InferenceRequest:
    keys = tuple(range(first_key, first_key + tokens // 64))
    return replace(request(team, prompt_tokens=tokens), prefix=Prefix(keys, 64.0))


def hinted(asked: InferenceRequest, hint: int) -> InferenceRequest:
    return replace(asked, prefix=replace(asked.prefix, hint=hint))


async def served(scheduler: Scheduler, asked: InferenceRequest) -> Lease:
    async with scheduler.ticket(asked, 1) as lease:
        lease.first_token(monotonic())
    return lease


async def test_a_second_turn_goes_to_the_worker_that_has_the_first() -> None:
    scheduler = pool("a", "b", "c", "d")
    for first_key in (1, 10_000, 20_000, 30_000):
        first = await served(scheduler, prompt(2_000, first_key))
        for _ in range(3):
            again = await served(scheduler, prompt(2_600, first_key))
            assert (again.target, again.reason) == (first.target, "affinity")
            assert again.claim.hit_tokens >= 1_900
    assert at_rest(scheduler)


@pytest.mark.parametrize("placement", ["predicted_ttft", "bounded_hash"])
async def test_requests_under_one_hint_go_to_one_worker_whatever_they_ask(placement: str) -> None:
    scheduler = pool("a", "b", "c", "d", serving=replace(SERVING, placement=placement))
    for hint in (11, 22, 33):
        first = await served(scheduler, hinted(prompt(300, 1_000 * hint), hint))
        for number in range(1, 4):
            again = await served(scheduler, hinted(prompt(300, 1_000 * hint + 100 * number), hint))
            assert (again.target, again.reason) == (first.target, "affinity")
        short = await served(scheduler, hinted(request("search", prompt_tokens=8), hint))
        assert short.target == first.target
    assert at_rest(scheduler)


async def test_no_queue_is_waited_in_for_a_hint_and_a_held_prompt_counts_more() -> None:
    scheduler = pool("a", "b")
    async with asyncio.TaskGroup() as group:
        first = Client(group, scheduler, hinted(prompt(8_000), 7))
        await turns()
        second = await served(scheduler, hinted(prompt(300, 9_000), 7))
        assert second.target != first.target
        await end_all([first])
    held = await served(scheduler, hinted(prompt(8_100), 8))
    assert held.target == first.target
    back = await served(scheduler, hinted(prompt(9_000, 20_000), 9))
    again = await served(scheduler, hinted(prompt(8_100), 9))
    assert again.target == first.target, back.target
    assert at_rest(scheduler)


async def test_a_lost_worker_is_forgotten_and_a_restart_finds_the_same_home() -> None:
    asked = prompt(2_000)
    homes = {(await served(pool("a", "b", "c"), asked)).target for _ in range(3)}
    assert len(homes) == 1
    scheduler = pool("a", "b", "c")
    home = (await served(scheduler, asked)).target
    scheduler.target_down(home)
    assert scheduler.blocks == 0
    assert (await served(scheduler, asked)).target != home


async def test_an_idle_worker_takes_what_its_warm_one_is_too_busy_for() -> None:
    scheduler = pool("a", "b")
    async with asyncio.TaskGroup() as group:
        first = Client(group, scheduler, prompt(8_000))
        await turns()
        second = Client(group, scheduler, prompt(8_000))
        await turns()
        assert {first.target, second.target} == {"a", "b"}
        await end_all([first, second])
    assert at_rest(scheduler)


async def test_nobody_waits_beyond_the_time_in_which_an_answer_is_of_use() -> None:
    scheduler = pool("a")
    async with asyncio.TaskGroup() as group:
        first = Client(group, scheduler, prompt(16_000))
        await turns()
        start = monotonic()
        with pytest.raises(WaitTooLong) as refused:
            async with scheduler.ticket(prompt(2_000, 9_000), 1):
                pass
        assert monotonic() - start <= 0.8
        assert refused.value.code == "overloaded"
        assert refused.value.retry_after_s is not None
        await first.end()
    assert at_rest(scheduler)


async def test_a_slow_engine_that_is_idle_is_never_too_slow() -> None:
    slow = replace(SERVING, targets=Targets(ttft_ms=1, tpot_ms=1))
    scheduler = pool("a", serving=slow)
    assert (await served(scheduler, prompt(16_000))).target == "a"


async def test_lower_ranks_give_way_while_higher_ones_are_refused() -> None:
    scheduler = pool("a")
    async with asyncio.TaskGroup() as group:
        first = Client(group, scheduler, prompt(16_000))
        await turns()
        with pytest.raises(WaitTooLong):
            async with scheduler.ticket(replace(prompt(2_000, 9_000), rank=1), 1):
                pass
        with pytest.raises(Shed):
            async with scheduler.ticket(prompt(2_000, 9_000), 1):
                pass
        await first.end()
    assert at_rest(scheduler)


async def test_who_is_due_first_goes_first_within_a_team() -> None:
    scheduler = pool("a")
    log: list[Client] = []
    async with asyncio.TaskGroup() as group:
        running = Client(group, scheduler, prompt(8_000), log=log)
        await turns()
        long = Client(group, scheduler, prompt(12_000, 20_000), log=log)
        short = Client(group, scheduler, prompt(500, 30_000), log=log)
        await turns()
        await running.end()
        await turns()
        await end_all([long, short])
    assert log == [running, short, long]


async def test_the_youngest_batch_lease_makes_room_and_is_given_back() -> None:
    scheduler = pool("a", slots=2)
    ended: list[str] = []

    async def batch(name: str) -> None:
        asked = replace(request(priority=Priority.BATCH), stream=False)
        try:
            async with scheduler.ticket(asked, 1):
                await asyncio.sleep(100)
        except Preempted:
            ended.append(name)

    async with asyncio.TaskGroup() as group:
        old = group.create_task(batch("old"))
        await asyncio.sleep(1)
        group.create_task(batch("young"))
        await asyncio.sleep(1)
        interactive = Client(group, scheduler, request())
        await turns()
        assert interactive.running.is_set()
        assert ended == ["young"]
        assert not old.done()
        await interactive.end()
    assert at_rest(scheduler)


async def test_a_promise_is_held_against_what_was_true() -> None:
    kept: list[tuple[float, float]] = []
    scheduler = Scheduler(
        "m@1", Queue(), random.Random(1), SERVING, lambda *pair: kept.append(pair)
    )
    scheduler.target_up("a", 64)
    async with asyncio.TaskGroup() as group:
        first = Client(group, scheduler, prompt(16_000))
        await turns()
        with pytest.raises(WaitTooLong):
            async with scheduler.ticket(prompt(2_000, 9_000), 1):
                pass
        await asyncio.sleep(5)
        await first.end()
        scheduler.pump()
    assert len(kept) == 1
    assert kept[0][1] == pytest.approx(5.0, abs=1.0)


class Chaos:
    """Clients that fail, are cancelled or preempted while workers flap, all drawn from one seed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.scheduler = pool("a", "b", "c", slots=8)
        self.outcomes: Counter[str] = Counter()

    async def client(self, asked: InferenceRequest) -> None:
        rng = self.rng
        try:
            async with self.scheduler.ticket(asked, rng.randrange(1, 5)) as lease:
                await self.use(lease)
            lease.correct(Usage(asked.prompt_tokens_estimated, 0, rng.randrange(300)))
            self.outcomes["served"] += 1
        except (InferdError, LookupError) as error:
            self.outcomes[type(error).__name__] += 1

    async def use(self, lease: Lease) -> None:
        await asyncio.sleep(self.rng.expovariate(20))
        if self.rng.random() < 0.8:
            lease.first_token(monotonic())
        if self.rng.random() < 0.1:
            raise LookupError
        await asyncio.sleep(self.rng.expovariate(5))

    def flap(self) -> None:
        if self.rng.random() < 0.02:
            self.scheduler.target_down(self.rng.choice("abc"))
        if self.rng.random() < 0.1:
            self.scheduler.target_up(self.rng.choice("abc"), 8)

    async def arrivals(self, count: int, group: asyncio.TaskGroup) -> None:
        rng = self.rng
        for number in range(count):
            asked = prompt(rng.randrange(64, 4_000), rng.randrange(1, 2_000), f"t{number % 7}")
            if rng.random() < 0.3:
                asked = replace(asked, priority=Priority.BATCH, stream=False)
            task = group.create_task(self.client(asked))
            if rng.random() < 0.1:
                asyncio.get_running_loop().call_later(rng.expovariate(10), task.cancel)
            self.flap()
            await asyncio.sleep(rng.expovariate(80))


async def test_any_mix_of_arrivals_cancels_failures_and_flaps_ends_at_zero(
    rng: random.Random,
) -> None:
    chaos = Chaos(rng)
    scheduler = chaos.scheduler
    async with asyncio.TaskGroup() as group:
        await chaos.arrivals(COUNT, group)
    for target in "abc":
        scheduler.target_up(target, 8)
    assert at_rest(scheduler)
    assert all(target.at_rest for target in scheduler.snapshot().targets)
    assert chaos.outcomes["served"] > COUNT / 3, chaos.outcomes
    assert chaos.outcomes["Preempted"], chaos.outcomes
    for target in "abc":
        scheduler.target_down(target)
    assert scheduler.blocks == 0
