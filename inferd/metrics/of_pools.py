"""What is counted of pools and workers: `metrics.pool[name]`, `.worker[id]`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from inferd.metrics.declare import START, WAIT, Bound, Declarations


@dataclass(frozen=True, slots=True)
class PoolMetrics:
    """What one pool's scheduler counts."""

    queue_wait: Bound[str, Histogram]  # by priority, seconds
    queue_depth: Bound[str, Gauge]  # by priority
    placements: Bound[str, Counter]  # by reason
    retries: Counter
    retry_after: Bound[str, Histogram]  # by kind: promised, true; seconds
    sides: Bound[tuple[str, str], Counter]  # by side and outcome: answered, failed, late
    adapters: Bound[str, Counter]  # by event: loaded, unloaded, failed
    slot_seconds: Bound[str, Counter]  # by use: interactive, batch, idle


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """What is known of one worker."""

    outstanding_tokens: Gauge
    inflight_requests: Gauge
    kv_utilization: Gauge
    aborts: Bound[str, Counter]  # by outcome
    watchdog: Bound[str, Counter]  # by decision
    silence_s: Gauge
    resident_bytes: Gauge
    state: Bound[str, Gauge]  # by state: 1 for the one it is in
    transitions: Bound[str, Counter]  # by the state entered

    def moved(self, before: str, after: str) -> None:
        self.state[before].set(0)
        self.state[after].set(1)
        self.transitions[after].inc()


class OfPools(Declarations):
    """Queues, placements, loads and lives."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._declare_pools()
        self._declare_workers()
        self.pool = Bound(self._bind_pool)
        self.worker = Bound(self._bind_worker)

    def _declare_pools(self) -> None:
        self._queue_wait = self._histogram(
            "inferd_queue_wait_seconds", "pool priority", "Arrival to a worker.", WAIT
        )
        self._queue_depth = self._gauge(
            "inferd_queue_depth", "pool priority", "Requests that wait for a worker."
        )
        self._placements = self._counter(
            "inferd_placements", "pool reason", "Requests placed, by why there."
        )
        self._retries = self._counter(
            "inferd_retries", "pool", "Requests placed again after their worker failed."
        )

        self._retry_after = self._histogram(
            "inferd_retry_after_seconds",
            "pool kind",
            "Retry-After as promised to refused requests, and as it would have been true.",
            WAIT,
        )

        self._sides = self._counter(
            "inferd_split_requests",
            "pool side outcome",
            "Parts of requests on the sides of a split pool, by how they ended.",
        )
        self._adapters = self._counter(
            "inferd_adapters", "pool event", "LoRA adapters loaded and unloaded, or not."
        )
        self._slot_seconds = self._counter(
            "inferd_slot_seconds", "pool use", "What slots of ready workers were used for."
        )

    def _declare_workers(self) -> None:
        self._outstanding_tokens = self._gauge(
            "inferd_outstanding_tokens", "worker", "Tokens that a worker's leases may still cost."
        )
        self._inflight_requests = self._gauge(
            "inferd_inflight_requests", "worker", "Requests that a worker is serving."
        )
        self._kv_utilization = self._gauge(
            "inferd_kv_utilization", "worker", "Share of a worker's KV cache in use; NaN: unknown."
        )
        self._worker_state = self._gauge(
            "inferd_worker_state", "worker state", "1 for the state that a worker is in."
        )
        self._worker_transitions = self._counter(
            "inferd_worker_transitions", "worker state", "States entered."
        )
        self._aborts = self._counter(
            "inferd_aborts", "worker outcome", "Requests that a worker was told to abort."
        )
        self._watchdog = self._counter(
            "inferd_watchdog_decisions", "worker decision", "What the watchdog decided."
        )
        self._silence_s = self._gauge(
            "inferd_worker_silence_seconds",
            "worker",
            "Since a busy worker last got on.",
        )
        self._resident_bytes = self._gauge(
            "inferd_worker_resident_bytes", "worker", "Memory that a worker's processes hold."
        )
        earlier_engines = self._counter(
            "inferd_earlier_engines",
            "outcome",
            "Engines that an earlier inferd had left: taken over (adopted) or ended.",
        )
        self.earlier_engines = Bound[str, Counter](earlier_engines.labels)
        worker_start = self._histogram(
            "inferd_worker_start_seconds", "phase", "Spent in a phase of a start.", START
        )
        self.worker_start = Bound[str, Histogram](worker_start.labels)

    def forget_pool(self, pool: str) -> None:
        """Stop showing the present of a pool that is gone; what it has counted stays."""
        self.pool.pop(pool, None)
        self._queue_depth.remove_by_labels({"pool": pool})

    def forget_worker(self, worker_id: str) -> None:
        self.worker.pop(worker_id, None)
        for gauge in (
            self._outstanding_tokens,
            self._inflight_requests,
            self._kv_utilization,
            self._silence_s,
            self._resident_bytes,
            self._worker_state,
        ):
            gauge.remove_by_labels({"worker": worker_id})

    def _bind_pool(self, pool: str) -> PoolMetrics:
        return PoolMetrics(
            queue_wait=Bound(partial(self._queue_wait.labels, pool)),
            queue_depth=Bound(partial(self._queue_depth.labels, pool)),
            placements=Bound(partial(self._placements.labels, pool)),
            retries=self._retries.labels(pool),
            retry_after=Bound(partial(self._retry_after.labels, pool)),
            sides=Bound(lambda key: self._sides.labels(pool, *key)),
            adapters=Bound(partial(self._adapters.labels, pool)),
            slot_seconds=Bound(partial(self._slot_seconds.labels, pool)),
        )

    def _bind_worker(self, worker_id: str) -> WorkerMetrics:
        return WorkerMetrics(
            outstanding_tokens=self._outstanding_tokens.labels(worker_id),
            inflight_requests=self._inflight_requests.labels(worker_id),
            kv_utilization=self._kv_utilization.labels(worker_id),
            aborts=Bound(partial(self._aborts.labels, worker_id)),
            watchdog=Bound(partial(self._watchdog.labels, worker_id)),
            silence_s=self._silence_s.labels(worker_id),
            resident_bytes=self._resident_bytes.labels(worker_id),
            state=Bound(partial(self._worker_state.labels, worker_id)),
            transitions=Bound(partial(self._worker_transitions.labels, worker_id)),
        )
