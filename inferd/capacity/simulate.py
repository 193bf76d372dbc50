"""Replays a workload through the product's own scheduler over modelled engines, in virtual time.

Queue, admission and placement are the ones that serve; only the engines and the clock are models.
A run is the same for the same seed. Requests of the warm-up share are served but not measured.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from inferd.capacity.engine_model import EngineModel, Job
from inferd.capacity.virtual_time import SimulatedTime
from inferd.capacity.workloads import Arrival, Workload, batch_line
from inferd.config.schema import Queue, Targets
from inferd.errors import LimitError, Preempted
from inferd.inference import Endpoint, InferenceRequest, Prefix, Priority, Usage
from inferd.routing.admission import SHORT_PROMPT_TOKENS, ttft_target_s
from inferd.routing.cost_model import H100_8B, H100_70B_TP8, EngineCost
from inferd.routing.lease import Lease
from inferd.routing.scheduler import Scheduler
from inferd.routing.serving import Serving

WARM: Final = 0.1
ENOUGH: Final = 0.95
"""Share of requests that must meet both targets at a rate that counts as carried."""
OUTPUT_TOKENS_MAX: Final = 4_096
"""What clients ask for at most: how long answers get, the gateway learns."""
HASHED_TOKENS: Final = 1_024
BATCH_AHEAD: Final = 4
"""Lines of the batch that wait, as the gateway's feeder has it."""
STEP: Final = 0.02
"""How exactly the highest rate is found."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """What is simulated: an engine's real cost and the KV tokens of one replica."""

    cost: EngineCost
    kv_tokens: int


ENGINES: Final = {
    "8b": EngineKind(H100_8B, 430_000),
    "70b": EngineKind(H100_70B_TP8, 1_300_000),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run. `speed` divides the arrival times; weights of teams not named are 1.

    `thinks`: what the gateway takes the engine for, if not for what it is. `give_up`: end as soon
    as this share of the measured requests has missed a target.
    """

    workload: Workload
    engine: EngineKind
    replicas: int
    policy: str = "predicted_ttft"
    refuse_late: bool = True
    speed: float = 1.0
    weights: Mapping[str, int] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    targets: Targets = field(default_factory=Targets)
    thinks: EngineCost | None = None
    oracle: bool = False
    give_up: float = 1.0
    warm: float = WARM
    """Share of the requests, from the first on, that is served but not measured."""
    batch_utilization_max: float = 0.6
    batch: bool = False
    """A batch that never ends takes what is left free."""
    seed: int = 1


@dataclass(slots=True)
class Served:
    """One measured request: seconds, tokens, and how it ended."""

    arrival: Arrival
    number: int
    arrived_s: float
    ttft_s: float | None = None
    tpot_s: float = 0.0
    cached_tokens: int = 0
    refused_after_s: float | None = None
    retry_after_s: float | None = None
    granted_s: float | None = None
    done_s: float | None = None
    cost: int = 0


@dataclass(slots=True)
class Run:
    """What came of a scenario."""

    scenario: Scenario
    served: list[Served] = field(default_factory=list)
    work_ms: list[float] = field(default_factory=list)
    token_imbalance: float = 1.0
    promises: list[tuple[float, float]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    gave_up: bool = False
    preempted: int = 0
    batch_done: int = 0
    """Lines of the batch that were done."""
    free: float = 0.0
    """Mean utilization that the threshold for batch work left free, over all replicas."""

    @property
    def rate(self) -> float:
        return self.scenario.workload.rate * self.scenario.speed


class _Replay:
    """One scenario on the running loop."""

    def __init__(self, scenario: Scenario, progress: Callable[[int], None] | None) -> None:
        self.scenario = scenario
        self.run = Run(scenario)
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        workload, kind = scenario.workload, scenario.engine
        serving = Serving(
            placement=scenario.policy,
            targets=scenario.targets,
            cost=scenario.thinks or kind.cost,
            refuse_late=scenario.refuse_late and scenario.policy == "predicted_ttft",
            kv_tokens=kind.kv_tokens,
            hashed_blocks=max(1, HASHED_TOKENS // workload.block_tokens),
            batch_utilization_max=scenario.batch_utilization_max,
        )
        queue = Queue(waiting_max=100_000, waiting_per_team_max=100_000, wait_s_max=86_400.0)
        self.scheduler = Scheduler(
            "simulated@1",
            queue,
            random.Random(scenario.seed),
            serving,
            lambda promised_s, true_s: self.run.promises.append((promised_s, true_s)),
        )
        known: set[int] | None = set() if scenario.oracle else None
        self.engines: dict[str, EngineModel] = {}
        for number in range(scenario.replicas):
            self.engines[f"w-{number:02}"] = EngineModel(
                kind.cost, kind.kv_tokens, workload.block_tokens, all_cached=known
            )
            self.scheduler.target_up(f"w-{number:02}", 256)
        self._first_measured = int(len(workload.arrivals) * scenario.warm)
        measured = len(workload.arrivals) - self._first_measured
        self._misses_left = int(scenario.give_up * measured)
        self._peaks = self._means = self._free = 0.0
        self._samples = 0
        self._numbers = itertools.count()

    async def play(self) -> Run:
        arrivals, speed = self.scenario.workload.arrivals, self.scenario.speed
        began_s = arrivals[0].at_s
        tasks: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:
            batch = group.create_task(self._run_batch()) if self.scenario.batch else None
            for number, one in enumerate(arrivals):
                due_s = (one.at_s - began_s) / speed
                if due_s > self._loop.time():
                    await asyncio.sleep(due_s - self._loop.time())
                if self._misses_left < 0:
                    self.run.gave_up = True
                    break
                tasks.append(group.create_task(self._serve(number, one)))
                self._sample()
                if self._progress is not None and number % 200 == 0:
                    self._progress(number)
            if self.run.gave_up:
                for task in tasks:
                    task.cancel()
            if batch is not None:
                batch.cancel()
        self.run.free = self._free / self._samples if self._samples else 0.0
        self.run.work_ms = [engine.work_ms for engine in self.engines.values()]
        self.run.token_imbalance = self._peaks / self._means if self._means else 1.0
        return self.run

    async def _run_batch(self) -> None:
        """As the feeder does: a few lines wait, and another follows when one was placed."""
        rng = random.Random(self.scenario.seed)
        placed = asyncio.Event()
        waiting = 0

        async def line(one: Arrival) -> None:
            nonlocal waiting
            waits = True
            while True:
                try:
                    async with self.scheduler.ticket(self._request(one), 1) as lease:
                        waiting -= waits
                        waits = False
                        placed.set()
                        self._settle(
                            one, lease, await self._run_on(self._engine(lease), one, lease)
                        )
                except Preempted:
                    self.run.preempted += 1
                else:
                    self.run.batch_done += 1
                    return

        async with asyncio.TaskGroup() as lines:
            while True:
                while waiting < BATCH_AHEAD:
                    waiting += 1
                    lines.create_task(line(batch_line(rng, self._loop.time())))
                placed.clear()
                await placed.wait()

    def _engine(self, lease: Lease) -> EngineModel:
        return self.engines[lease.target]

    async def _serve(self, number: int, one: Arrival) -> None:
        request = self._request(one)
        weight = self.scenario.weights.get(one.team, 1)
        served = Served(one, number, self._loop.time())
        job: Job | None = None
        while job is None:
            try:
                async with self.scheduler.ticket(request, weight) as lease:
                    self.run.reasons[lease.reason] += 1
                    served.granted_s = self._loop.time()
                    job = await self._run_on(self.engines[lease.target], one, lease)
                served.cost = self._settle(one, lease, job)
            except Preempted:
                self.run.preempted += 1
            except LimitError as error:
                served.refused_after_s = self._loop.time() - served.arrived_s
                served.retry_after_s = error.retry_after_s
                self._measured(served)
                return
        served.done_s = self._loop.time()
        served.cached_tokens = job.cached_tokens
        served.ttft_s = job.first_at - served.arrived_s
        if one.output_tokens > 1:
            served.tpot_s = (served.done_s - job.first_at) / (one.output_tokens - 1)
        self._measured(served)

    def _settle(self, one: Arrival, lease: Lease, job: Job) -> int:
        """The bill, and the cost that the team's share was charged with in the end."""
        usage = Usage(one.prompt_tokens, job.cached_tokens, one.output_tokens)
        lease.correct(usage)
        return self.scheduler.cost_of(usage)

    async def _run_on(self, engine: EngineModel, one: Arrival, lease: Lease) -> Job:
        done: asyncio.Future[None] = self._loop.create_future()
        job = Job(
            next(self._numbers),
            one.keys,
            one.prompt_tokens,
            one.output_tokens,
            lambda: lease.first_token(self._loop.time()),
            lambda: None if done.done() else done.set_result(None),
        )
        engine.submit(job)
        try:
            await done
        finally:
            if job.state != "gone":
                engine.cancel(job)
        return job

    def _request(self, one: Arrival) -> InferenceRequest:
        return InferenceRequest(
            request_id="",
            team=one.team,
            key_id="",
            endpoint=Endpoint.CHAT,
            model="simulated",
            pool="simulated@1",
            body={},
            prompt_bytes=0,
            prompt_tokens_estimated=one.prompt_tokens,
            output_tokens_max=OUTPUT_TOKENS_MAX,
            output_tokens_given=True,
            choices=1,
            stream=True,
            include_usage=False,
            priority=Priority.BATCH if one.is_batch else Priority.INTERACTIVE,
            deadline=float("inf"),
            prefix=Prefix(one.keys, float(self.scenario.workload.block_tokens)),
            rank=self.scenario.ranks.get(one.team, 0),
        )

    def _measured(self, served: Served) -> None:
        if served.number >= self._first_measured:
            self.run.served.append(served)
            self._misses_left -= not met(served, self.scenario.targets)

    def _sample(self) -> None:
        loads = [self.scheduler.outstanding(target) for target in self.engines]
        self._peaks += max(loads)
        self._means += sum(loads) / len(loads)
        limit = self.scenario.batch_utilization_max
        used = [one.utilization for one in self.scheduler.snapshot().targets]
        self._free += sum(max(0.0, limit - one) for one in used) / len(used)
        self._samples += 1


def met(served: Served, targets: Targets) -> bool:
    """On time, in both targets."""
    if served.ttft_s is None:
        return False
    in_time = served.ttft_s <= ttft_target_s(targets, served.arrival.prompt_tokens)
    return in_time and served.tpot_s <= targets.tpot_ms / 1e3


def simulate(scenario: Scenario, progress: Callable[[int], None] | None = None) -> Run:
    """Play one scenario. `progress` is told how many requests have arrived."""

    async def play() -> Run:
        return await _Replay(scenario, progress).play()

    with asyncio.Runner(loop_factory=SimulatedTime) as runner:
        return runner.run(play())


def capacity(scenario: Scenario, rate_max: float) -> Run:
    """The run at the highest rate at which enough requests meet both targets, by bisection."""
    native = scenario.workload.rate
    low, high = 0.0, rate_max / native
    best = Run(replace(scenario, speed=low))
    while high - low > STEP * high and high > rate_max / native / 64:
        middle = (low + high) / 2
        run = simulate(replace(scenario, speed=middle, give_up=1 - ENOUGH))
        if not run.gave_up and share_on_time(run) >= ENOUGH:
            low, best = middle, run
        else:
            high = middle
    return best


def share_on_time(run: Run) -> float:
    if not run.served:
        return 0.0
    return sum(met(one, run.scenario.targets) for one in run.served) / len(run.served)


def figures(run: Run) -> dict[str, float]:
    """What tables show of a run. Times in seconds, shares between 0 and 1."""
    answered = [one for one in run.served if one.ttft_s is not None]
    ttft = sorted(one.ttft_s for one in answered if one.ttft_s is not None)
    short = sorted(
        one.ttft_s
        for one in answered
        if one.ttft_s is not None and one.arrival.prompt_tokens <= SHORT_PROMPT_TOKENS
    )
    tpot = sorted(one.tpot_s for one in answered if one.arrival.output_tokens > 1)
    prompt = sum(one.arrival.prompt_tokens for one in answered)
    hit = sum(one.cached_tokens for one in answered) / prompt if prompt else 0.0
    bound = run.scenario.workload.bound(run.scenario.warm)
    mean_work = sum(run.work_ms) / len(run.work_ms) if run.work_ms else 0.0
    promises = run.promises
    kept = sum(true_s <= promised_s for promised_s, true_s in promises)
    return {
        "rate": run.rate,
        "on_time": share_on_time(run),
        "refused": 1 - len(answered) / len(run.served) if run.served else 0.0,
        "hit": hit,
        "of_bound": hit / bound if bound else 0.0,
        "ttft_p50": quantile(ttft, 0.5),
        "ttft_p95": quantile(ttft, 0.95),
        "ttft_p99": quantile(ttft, 0.99),
        "short_p95": quantile(short, 0.95),
        "tpot_p95": quantile(tpot, 0.95),
        "work_imbalance": max(run.work_ms) / mean_work if mean_work else 1.0,
        "token_imbalance": run.token_imbalance,
        "promised_p50": quantile(sorted(promised_s for promised_s, _ in promises), 0.5),
        "promise_true_p50": quantile(sorted(true_s for _, true_s in promises), 0.5),
        "promise_true_p95": quantile(sorted(true_s for _, true_s in promises), 0.95),
        "promises_kept": kept / len(promises) if promises else 1.0,
        "preempted": float(run.preempted),
    }


def quantile(ordered: list[float], share: float) -> float:
    """Of values in order; 0 for none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
