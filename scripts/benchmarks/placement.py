"""What the decision costs: CPU of a ticket, granted and released, against a bare future.

Every line is a ratio within this run, so it holds on any machine: the unit is one round trip of an
asyncio future through the loop, measured in turn with the tickets. Exits with 1 if the placement
budget (50 us at 16 workers) is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import uvloop

from inferd.config.schema import Queue, Targets
from inferd.inference import Endpoint, InferenceRequest, Prefix, Priority
from inferd.routing.scheduler import Scheduler
from inferd.routing.serving import Serving

BUDGET_US = 50.0
TEAMS = [f"team-{number}" for number in range(30)]
Case = Callable[[int], Awaitable[None]]


def _requests(loop: asyncio.AbstractEventLoop, rng: random.Random) -> list[InferenceRequest]:
    base = InferenceRequest(
        request_id="req_0",
        team="",
        key_id="key_0",
        endpoint=Endpoint.CHAT,
        model="m",
        pool="m@1",
        body={},
        prompt_bytes=7_000,
        prompt_tokens_estimated=2_000,
        output_tokens_max=300,
        output_tokens_given=True,
        choices=1,
        stream=True,
        include_usage=False,
        priority=Priority.INTERACTIVE,
        deadline=loop.time() + 1e6,
    )
    return [
        replace(base, team=rng.choice(TEAMS), prompt_tokens_estimated=rng.randrange(10, 4_000))
        for _ in range(1_000)
    ]


PREDICTED = Serving(placement="predicted_ttft", targets=Targets(ttft_ms=600_000, tpot_ms=1_000))


def _scheduler(
    workers: int, slots: int, rng: random.Random, serving: Serving | None = None
) -> Scheduler:
    limits = Queue(waiting_max=10_000, waiting_per_team_max=10_000, wait_s_max=600.0)
    scheduler = Scheduler("m@1", limits, rng, serving)
    for number in range(workers):
        scheduler.target_up(f"w-{number}", slots)
    return scheduler


async def bare_future(count: int) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(count):
        future = loop.create_future()
        loop.call_soon(future.set_result, None)
        await future


def idle(workers: int, rng: random.Random) -> Case:
    """Room everywhere: granted at once, no future."""

    async def run(count: int) -> None:
        scheduler = _scheduler(workers, 256, rng)
        requests = _requests(asyncio.get_running_loop(), rng)
        for number in range(count):
            async with scheduler.ticket(requests[number % 1_000], 1):
                pass

    return run


def decided(workers: int, rng: random.Random) -> Case:
    """By predicted first token: prompts of 32 blocks, half of them held by some worker."""

    async def run(count: int) -> None:
        scheduler = _scheduler(workers, 256, rng, PREDICTED)
        requests = [
            replace(one, prefix=Prefix((*range(team, team + 16), *range(own, own + 16)), 64.0))
            for number, one in enumerate(_requests(asyncio.get_running_loop(), rng))
            for team, own in [(number % 100 * 1_000, 10**6 + number * 100)]
        ]
        busy = [scheduler.ticket(requests[number], 1) for number in range(workers * 4)]
        async with AsyncExitStack() as stack:
            for ticket in busy:
                (await stack.enter_async_context(ticket)).first_token(0.0)
            for number in range(count):
                async with scheduler.ticket(requests[number % 1_000], 1) as lease:
                    lease.first_token(0.0)

    return run


def contended(workers: int, waiting: int, rng: random.Random) -> Case:
    """Every slot is taken and `waiting` requests queue: each release hands its slot on."""

    async def run(count: int) -> None:
        scheduler = _scheduler(workers, 8, rng)
        requests = _requests(asyncio.get_running_loop(), rng)
        clients = workers * 8 + waiting
        each = -(-count // clients)

        async def client(first: int) -> None:
            for number in range(first, first + each):
                async with scheduler.ticket(requests[number % 1_000], 1):
                    await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(client(number * each))

    return run


def _measure(case: Case, count: int) -> float:
    """CPU microseconds of one."""

    async def run() -> float:
        await case(count // 10)
        start = time.process_time()
        await case(count)
        return (time.process_time() - start) / count * 1e6

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=20_000, help="tickets of one measurement")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    rng = random.Random(1)
    cases: dict[str, Case] = {"bare future": bare_future}
    for workers in (1, 4, 16):
        cases[f"ticket, {workers} idle workers"] = idle(workers, rng)
        cases[f"ticket, {workers} full workers, 200 wait"] = contended(workers, 200, rng)
        cases[f"decision, {workers} busy workers"] = decided(workers, rng)
    results: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(chosen.repeats):
        for name, case in cases.items():
            results[name].append(_measure(case, chosen.count))
    medians = {name: statistics.median(values) for name, values in results.items()}
    unit = medians["bare future"]
    if chosen.json:
        sys.stdout.write(
            json.dumps({"benchmark": "placement", "us": medians, "unit": "bare future"}) + "\n"
        )
    else:
        for name, value in medians.items():
            sys.stdout.write(f"{name:<36} {value:7.2f} us {value / unit:6.1f} x\n")
    slowest = max(value for name, value in medians.items() if ", 16 " in name)
    if slowest > BUDGET_US:
        sys.stderr.write(f"over budget: {slowest:.1f} us > {BUDGET_US:.0f} us at 16 workers\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
