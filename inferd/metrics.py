"""Every metric of inferd, declared here and nowhere else, and what binds their labels.

`Metrics` owns them in the registry it is given. A lookup by labels costs several increments, so
children are bound to their labels once: `metrics.pool[name]`, `.worker[id]`, `.team[name]`,
`.model[model, version]`, `.traffic[team, model, version]`. Label values come from the
configuration and from enums only, so their number is bounded.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from inferd import __version__

EXPOSITION_TYPE: Final = CONTENT_TYPE_LATEST
"""The content type of `Metrics.exposition`."""

# Bucket bounds, in seconds but for the rows: dense around the usual targets (800 ms, 40 ms).
_FIRST_TOKEN: Final = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.2, 1.6, 2.4, 4, 8, 15, 30, 60)
_PER_TOKEN: Final = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.12, 0.25, 0.5, 1)
_WAIT: Final = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)
_START: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800)
_LAG: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
_ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})

K = TypeVar("K")
C = TypeVar("C")


class Bound(dict[K, C], Generic[K, C]):
    """What is bound to a key, made when it is first asked for and kept."""

    def __init__(self, bind: Callable[[K], C]) -> None:
        super().__init__()
        self._bind = bind

    def __missing__(self, key: K) -> C:
        child = self[key] = self._bind(key)
        return child


@dataclass(frozen=True, slots=True)
class PoolMetrics:
    """What one pool's scheduler counts."""

    queue_wait: Bound[str, Histogram]  # by priority, seconds
    queue_depth: Bound[str, Gauge]  # by priority
    placements: Bound[str, Counter]  # by reason
    retries: Counter
    retry_after: Bound[str, Histogram]  # by kind: promised, true; seconds


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """What is known of one worker."""

    outstanding_tokens: Gauge
    inflight_requests: Gauge
    kv_utilization: Gauge
    aborts: Bound[str, Counter]  # by outcome
    state: Bound[str, Gauge]  # by state: 1 for the one it is in
    transitions: Bound[str, Counter]  # by the state entered

    def moved(self, before: str, after: str) -> None:
        self.state[before].set(0)
        self.state[after].set(1)
        self.transitions[after].inc()


@dataclass(frozen=True, slots=True)
class TeamMetrics:
    """What one team has left."""

    bucket_balance_tokens: Gauge


@dataclass(frozen=True, slots=True)
class ModelMetrics:
    """How fast one version of a model answers, and whether that is as promised."""

    ttft_s: Histogram
    time_per_output_token_s: Histogram
    met: Bound[str, Counter]  # by objective: ttft, tpot
    missed: Bound[str, Counter]


@dataclass(frozen=True, slots=True)
class TrafficMetrics:
    """What one team has asked of one version of a model."""

    requests: Bound[str, Counter]  # by outcome
    prompt_tokens_cached: Counter
    prompt_tokens_computed: Counter
    completion_tokens: Counter


class Metrics:
    """Declares every metric in `registry` and hands out what counts them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # When a series began says nothing that its first sample does not.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry
        self._declare_requests()
        self._declare_pools()
        self._declare_workers()
        self._declare_process()
        self.pool = Bound(self._bind_pool)
        self.worker = Bound(self._bind_worker)
        self.team = Bound(self._bind_team)
        self.model = Bound(self._bind_model)
        self.traffic = Bound(self._bind_traffic)

    def _declare_requests(self) -> None:
        self._requests = self._counter(
            "inferd_requests", "team model version outcome", "Requests, by how they ended."
        )
        self._prompt_tokens = self._counter(
            "inferd_prompt_tokens",
            "team model cached",
            "Prompt tokens; cached: not computed again.",
        )
        self._completion_tokens = self._counter(
            "inferd_completion_tokens", "team model", "Tokens generated."
        )
        self._ttft = self._histogram(
            "inferd_ttft_seconds", "model version", "Arrival to first output.", _FIRST_TOKEN
        )
        self._time_per_output_token = self._histogram(
            "inferd_time_per_output_token_seconds",
            "model version",
            "Mean of a streamed answer, after its first output.",
            _PER_TOKEN,
        )
        self._slo = self._counter(
            "inferd_slo", "model objective met", "Answers that met or missed a target."
        )
        http_requests = self._counter(
            "inferd_http_requests", "route method status", "HTTP requests on both listeners."
        )
        self._http = Bound[tuple[str, str, str], Counter](lambda key: http_requests.labels(*key))
        self._bucket_balance_tokens = self._gauge(
            "inferd_bucket_balance_tokens", "team", "Tokens that a team can spend at once."
        )

    def _declare_pools(self) -> None:
        self._queue_wait = self._histogram(
            "inferd_queue_wait_seconds", "pool priority", "Arrival to a worker.", _WAIT
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
            _WAIT,
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
        worker_start = self._histogram(
            "inferd_worker_start_seconds", "phase", "Spent in a phase of a start.", _START
        )
        self.worker_start = Bound[str, Histogram](worker_start.labels)

    def _declare_process(self) -> None:
        self.writer_batch_rows = self._histogram(
            "inferd_writer_batch_rows", "", "Writes in one database transaction.", _ROWS
        )
        self.writer_queue_depth = self._gauge(
            "inferd_writer_queue_depth", "", "Writes that wait for the database."
        )
        self.writer_rows_lost = self._counter(
            "inferd_writer_rows_lost", "", "Rows that could not be written and are gone."
        )
        self.loop_lag_s = self._histogram(
            "inferd_loop_lag_seconds", "", "How late the event loop runs a timer.", _LAG
        )
        config_reloads = self._counter(
            "inferd_config_reloads", "outcome", "Reloads of inferd.toml, by how they ended."
        )
        self.config_reloads = Bound[str, Counter](config_reloads.labels)
        build = Info("inferd_build", "What is running.", registry=self._registry)
        build.info({"version": __version__, "python": platform.python_version()})
        ProcessCollector(namespace="inferd", registry=self._registry)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def http_request(self, route: str, method: str, status: int) -> None:
        """Count one answer. `route` is the route's pattern, never the path that was asked for."""
        known = method if method in _METHODS else "other"
        self._http[route, known, str(status)].inc()

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
            self._worker_state,
        ):
            gauge.remove_by_labels({"worker": worker_id})

    def forget_team(self, team: str) -> None:
        self.team.pop(team, None)
        self._bucket_balance_tokens.remove_by_labels({"team": team})

    def _bind_pool(self, pool: str) -> PoolMetrics:
        return PoolMetrics(
            queue_wait=Bound(partial(self._queue_wait.labels, pool)),
            queue_depth=Bound(partial(self._queue_depth.labels, pool)),
            placements=Bound(partial(self._placements.labels, pool)),
            retries=self._retries.labels(pool),
            retry_after=Bound(partial(self._retry_after.labels, pool)),
        )

    def _bind_worker(self, worker_id: str) -> WorkerMetrics:
        return WorkerMetrics(
            outstanding_tokens=self._outstanding_tokens.labels(worker_id),
            inflight_requests=self._inflight_requests.labels(worker_id),
            kv_utilization=self._kv_utilization.labels(worker_id),
            aborts=Bound(partial(self._aborts.labels, worker_id)),
            state=Bound(partial(self._worker_state.labels, worker_id)),
            transitions=Bound(partial(self._worker_transitions.labels, worker_id)),
        )

    def _bind_team(self, team: str) -> TeamMetrics:
        return TeamMetrics(bucket_balance_tokens=self._bucket_balance_tokens.labels(team))

    def _bind_model(self, name: tuple[str, str]) -> ModelMetrics:
        model, version = name
        return ModelMetrics(
            ttft_s=self._ttft.labels(model, version),
            time_per_output_token_s=self._time_per_output_token.labels(model, version),
            met=Bound(lambda objective: self._slo.labels(model, objective, "true")),
            missed=Bound(lambda objective: self._slo.labels(model, objective, "false")),
        )

    def _bind_traffic(self, name: tuple[str, str, str]) -> TrafficMetrics:
        team, model, version = name
        return TrafficMetrics(
            requests=Bound(partial(self._requests.labels, team, model, version)),
            prompt_tokens_cached=self._prompt_tokens.labels(team, model, "true"),
            prompt_tokens_computed=self._prompt_tokens.labels(team, model, "false"),
            completion_tokens=self._completion_tokens.labels(team, model),
        )

    def _counter(self, name: str, labels: str, told: str) -> Counter:
        return Counter(name, told, labels.split(), registry=self._registry)

    def _gauge(self, name: str, labels: str, told: str) -> Gauge:
        return Gauge(name, told, labels.split(), registry=self._registry)

    def _histogram(self, name: str, labels: str, told: str, bounds: Sequence[float]) -> Histogram:
        return Histogram(name, told, labels.split(), buckets=bounds, registry=self._registry)
