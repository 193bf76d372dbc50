"""Joins workers to schedulers: the only place that knows both. Owns the schedulers of all pools.

A worker that becomes ready turns into a target; one that drains or is lost stops being one. A pool
that the config no longer names takes no requests, but is kept until its last worker has ended.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from inferd.clock import utc_now_us
from inferd.config.schema import Model, Queue
from inferd.errors import NoWorker
from inferd.inference import SYSTEM_TEAM, Endpoint, Outcome, Priority, new_request_id
from inferd.metrics import Metrics
from inferd.routing.pools import pool_id
from inferd.routing.scheduler import Scheduler
from inferd.routing.serving import Serving
from inferd.routing.snapshot import TargetSnapshot
from inferd.storage.usage import UsageRow
from inferd.workers.base import WorkerBase
from inferd.workers.client import WorkerClient
from inferd.workers.engine import Loads
from inferd.workers.spec import Side
from inferd.workers.states import WorkerState
from inferd.workers.warm_up import WarmUp
from inferd.workers.watchdog import NOTHING, Expectation

STARTING: Final = frozenset({WorkerState.SPAWNING, WorkerState.LOADING, WorkerState.WARMING})
Watch = Callable[[WorkerBase, WorkerState, WorkerState], None]


class Fleet:
    """The supervisor's observer. `record` takes the ledger rows of warm-ups."""

    def __init__(
        self, *, metrics: Metrics, record: Callable[[UsageRow], object], rng: random.Random
    ) -> None:
        self.schedulers: dict[str, Scheduler] = {}
        self.clients: dict[str, WorkerClient] = {}
        self.workers: dict[str, WorkerBase] = {}
        self.watch: Watch | None = None
        self.decoders: dict[str, Scheduler] = {}
        """The decode side of each split pool, by the pool's name."""
        self.on_ready: Callable[[WorkerBase], None] | None = None
        self._leaving: dict[str, Scheduler] = {}
        self._held_back: dict[str, WorkerBase] = {}
        """Workers that get no new requests because they seem to hang."""
        self._metrics = metrics
        self._record = record
        self._rng = rng

    def apply(self, models: Sequence[Model]) -> None:
        """A scheduler for each version; those of versions that are gone refuse who waits there."""
        wanted = {
            pool_id(model.name, version.version): (model.queue, Serving.of(model, version))
            for model in models
            for version in model.versions
        }
        for pool, (queue, serving) in wanted.items():
            scheduler = self._leaving.pop(pool, None) or self.schedulers.get(pool)
            if scheduler is None:
                kept = partial(self._promise_kept, pool)
                scheduler = Scheduler(pool, queue, self._rng, serving, kept)
            scheduler.update(queue, serving)
            self.schedulers[pool] = scheduler
        for pool in self.schedulers.keys() - wanted:
            self._leave(pool, self.schedulers.pop(pool))
        self._apply_decoders({pool: wanted[pool] for pool in _split(models)})

    def _apply_decoders(self, wanted: Mapping[str, tuple[Queue, Serving]]) -> None:
        for pool, (queue, serving) in wanted.items():
            side = decode_side(pool)
            scheduler = self._leaving.pop(side, None) or self.decoders.get(pool)
            if scheduler is None:
                scheduler = Scheduler(side, queue, self._rng, serving.decoding())
            scheduler.update(queue, serving.decoding())
            self.decoders[pool] = scheduler
        for pool in self.decoders.keys() - wanted:
            self._leave(decode_side(pool), self.decoders.pop(pool))

    def _leave(self, name: str, scheduler: Scheduler) -> None:
        self._leaving[name] = scheduler
        scheduler.fail_waiting(NoWorker(f"`{name}` is not served any more.", retry_after_s=10))
        self._forget_if_empty(name)

    def _scheduler_of(self, worker: WorkerBase) -> Scheduler | None:
        """The one that has its leases; also of a pool that is going."""
        if worker.side is Side.DECODE:
            leaving = self._leaving.get(decode_side(worker.pool))
            return self.decoders.get(worker.pool) or leaving
        return self.schedulers.get(worker.pool) or self._leaving.get(worker.pool)

    def worker_changed(self, worker: WorkerBase, before: WorkerState, after: WorkerState) -> None:
        self.workers[worker.id] = worker
        scheduler = self._scheduler_of(worker)
        if scheduler is not None:
            if after is WorkerState.READY:
                worker.client.on_abort = partial(self._count_abort, worker.id)
                worker.on_loads = partial(self._loads_reported, worker)
                self.clients[worker.id] = worker.client
                scheduler.target_up(worker.id, worker.inflight_max)
                self._follow_adapters(worker, scheduler)
                if self.on_ready is not None:
                    self.on_ready(worker)
            elif after is WorkerState.DRAINING:
                self._spare_suspects(scheduler, without=worker.id)
                scheduler.target_draining(worker.id)
            elif before in (WorkerState.READY, WorkerState.DRAINING):
                self._spare_suspects(scheduler, without=worker.id)
                scheduler.target_down(worker.id)
        if after in (WorkerState.STOPPED, WorkerState.FAILED):
            self._forget_if_empty(worker.pool)
            self._forget_if_empty(decode_side(worker.pool))
        if after is WorkerState.STOPPED:  # removed, or followed by another life that says so
            del self.workers[worker.id]
        if self.watch is not None:
            self.watch(worker, before, after)

    def warmed(self, worker: WorkerBase, warm: WarmUp) -> None:
        """The warm-up's tokens go to the system team, so that ledger and engine agree."""
        if scheduler := self._scheduler_of(worker):
            scheduler.target_warmed(warm.new_tokens, warm.ttft_s, warm.tpot_s)
        usage = warm.usage
        model, _, version = worker.pool.rpartition("@")
        self._record(
            UsageRow(
                request_id=new_request_id(),
                response_id=None,
                ts_us=utc_now_us(),
                team=SYSTEM_TEAM,
                key_id="",
                model=model,
                version=version,
                pool=worker.pool,
                worker=worker.id,
                priority=Priority.INTERACTIVE,
                endpoint=Endpoint.CHAT if usage.completion_tokens else Endpoint.EMBEDDINGS,
                stream=usage.completion_tokens > 0,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
                reasoning_tokens=usage.reasoning_tokens,
                estimated=usage.estimated,
                queue_wait_s=0.0,
                ttft_s=warm.ttft_s,
                tpot_s=warm.tpot_s,
                duration_s=warm.ttft_s + warm.tpot_s * max(usage.completion_tokens - 1, 0),
                placement_reason="warm_up",
                attempts=1,
                outcome=Outcome.COMPLETED,
                error_code=None,
            )
        )

    def suspected(self, worker: WorkerBase, *, suspected: bool) -> None:
        """One that seems to hang gets no new requests while another one can take them."""
        scheduler = self._scheduler_of(worker)
        if scheduler is None or worker.state is not WorkerState.READY:
            return
        if not suspected:
            self._held_back.pop(worker.id, None)
            scheduler.target_up(worker.id, worker.inflight_max)
        elif set(scheduler.ready_targets) - {worker.id}:
            self._held_back[worker.id] = worker
            scheduler.target_draining(worker.id)

    def _spare_suspects(self, scheduler: Scheduler, without: str) -> None:
        """Before the last other worker goes: one that may hang is better than none."""
        self._held_back.pop(without, None)
        if not set(scheduler.ready_targets) - {without}:
            for worker in list(self._held_back.values()):
                if self._scheduler_of(worker) is scheduler:
                    del self._held_back[worker.id]
                    scheduler.target_up(worker.id, worker.inflight_max)

    def expected(self, worker_id: str) -> Expectation:
        """What a worker's work should take, by what its pool has learnt."""
        worker = self.workers.get(worker_id)
        scheduler = None if worker is None else self._scheduler_of(worker)
        if scheduler is None:
            return NOTHING
        work = scheduler.work_of(worker_id)
        return Expectation(work.backlog_s, work.again_s, work.step_s)

    def leases_of(self, worker_id: str) -> int:
        """Leases that a worker holds now; 0 for one that is no target."""
        worker = self.workers.get(worker_id)
        if worker is None:
            return 0
        scheduler = self._scheduler_of(worker)
        return scheduler.leases_of(worker_id) if scheduler else 0

    @property
    def every_scheduler(self) -> tuple[Scheduler, ...]:
        """Those of all pools, of both sides where they are split, and of those that are leaving."""
        return (*self.schedulers.values(), *self.decoders.values(), *self._leaving.values())

    def inflight_of(self, pool: str) -> int | None:
        """Requests in flight in a pool; None while no worker of it is ready."""
        scheduler = self.schedulers.get(pool)
        return scheduler.inflight if scheduler and scheduler.ready_targets else None

    @property
    def ready(self) -> bool:
        """Some pool has a worker that takes requests."""
        return any(self.pool_state(pool) == "ready" for pool in self.schedulers)

    def pool_state(self, pool: str) -> str:
        """`ready`, `loading`, `draining` or `unavailable`: the best of its workers' states.

        A split pool stands as its worse side does.
        """
        if pool not in self.decoders:
            return self._state(pool)
        sides = [self._state(pool, side) for side in (Side.PREFILL, Side.DECODE)]
        return max(sides, key=("ready", "loading", "draining", "unavailable").index)

    def targets_of(self, pool: str) -> tuple[TargetSnapshot, ...]:
        """What each ready or draining worker of a pool carries, of both sides if it is split."""
        found = [self.schedulers[pool].snapshot().targets]
        if decoder := self.decoders.get(pool):
            found.append(decoder.snapshot().targets)
        return tuple(target for targets in found for target in targets)

    def _state(self, pool: str, side: Side | None = None) -> str:
        states = {
            worker.state
            for worker in self.workers.values()
            if worker.pool == pool and (side is None or worker.side in {side, Side.WHOLE})
        }
        if WorkerState.READY in states:
            return "ready"
        if states & STARTING:
            return "loading"
        return "draining" if WorkerState.DRAINING in states else "unavailable"

    def refresh_metrics(self) -> None:
        """Set the gauges that are cheaper to read than to keep."""
        for scheduler in (*self.schedulers.values(), *self.decoders.values()):
            snapshot = scheduler.snapshot()
            pool = self._metrics.pool[snapshot.pool]
            for priority, waiting in snapshot.waiting.items():
                pool.queue_depth[priority].set(waiting)
            for target in snapshot.targets:
                worker = self._metrics.worker[target.target]
                worker.inflight_requests.set(target.inflight)
                worker.outstanding_tokens.set(target.outstanding_tokens)

    def _follow_adapters(self, worker: WorkerBase, scheduler: Scheduler) -> None:
        if (adapters := worker.client.adapters) is not None:
            adapters.on_event = lambda event: self._metrics.pool[worker.pool].adapters[event].inc()
            adapters.on_change = partial(scheduler.target_holds, worker.id)
            adapters.on_change(adapters.loaded)
            adapters.start()

    def _loads_reported(self, worker: WorkerBase, loads: Loads) -> None:
        if scheduler := self._scheduler_of(worker):
            scheduler.target_reported(worker.id, loads.used_tokens, loads.total_tokens)

    def _promise_kept(self, pool: str, promised_s: float, true_s: float) -> None:
        retry_after = self._metrics.pool[pool].retry_after
        retry_after["promised"].observe(promised_s)
        retry_after["true"].observe(true_s)

    def _count_abort(self, worker_id: str, confirmed: bool) -> None:  # noqa: FBT001 - a callback
        outcome = "confirmed" if confirmed else "unanswered"
        self._metrics.worker[worker_id].aborts[outcome].inc()

    def _forget_if_empty(self, pool: str) -> None:
        scheduler = self._leaving.get(pool)
        if scheduler is not None and not scheduler.snapshot().targets:
            del self._leaving[pool]
            self._metrics.forget_pool(pool)


def decode_side(pool: str) -> str:
    """How the decode side of a split pool is called, in metrics and errors."""
    return f"{pool}/decode"


def _split(models: Iterable[Model]) -> Iterator[str]:
    for model in models:
        for version in model.versions:
            if version.split is not None:
                yield pool_id(model.name, version.version)
