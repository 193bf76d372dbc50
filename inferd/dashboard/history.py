"""The last hour of every pool, sampled for the plots: waiting, running, KV cache, TTFT, TPOT.

Owned by its service. Bounded: `SAMPLES_MAX` a pool. Percentiles are read off the metrics' own
histograms, from what they counted between two samples, so no request is looked at twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from inferd.metrics import Metrics
    from inferd.routing.scheduler import Scheduler
    from inferd.workers.base import WorkerBase

SAMPLE_S: Final = 5.0
SAMPLES_MAX: Final = 720
"""An hour."""
WINDOW_SAMPLES: Final = 12
"""Percentiles are of the last minute: single samples hold too few requests."""

Counts = Sequence[tuple[float, float]]
"""A cumulative histogram: upper bounds and how many were at most so large."""


@dataclass(frozen=True, slots=True)
class PoolSample:
    """One pool at one moment. None: nothing was there to measure."""

    waiting_interactive: int
    waiting_batch: int
    running: int
    kv_utilization: float | None
    ttft_p95_s: float | None
    tpot_p95_s: float | None
    ttft_p50_s: float | None
    tpot_p50_s: float | None


class History:
    """Samples by pool, oldest first. `run` is the service that takes them."""

    def __init__(
        self,
        *,
        schedulers: Mapping[str, Scheduler],
        workers: Callable[[], Iterable[WorkerBase]],
        metrics: Metrics,
    ) -> None:
        self._schedulers = schedulers
        self._workers = workers
        self._metrics = metrics
        self._samples: dict[str, deque[PoolSample]] = {}
        self._counts: dict[str, deque[tuple[Counts, Counts]]] = {}

    def of(self, pool: str) -> list[PoolSample]:
        return list(self._samples.get(pool, ()))

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_S)

    def sample(self) -> None:
        """Look once at every pool; forget those that are gone."""
        ttft, tpot = self._metrics.ttft_counts(), self._metrics.tpot_counts()
        for gone in set(self._samples) - set(self._schedulers):
            del self._samples[gone], self._counts[gone]
        for pool in self._schedulers:
            counts = self._counts.setdefault(pool, deque(maxlen=WINDOW_SAMPLES))
            counts.append((ttft.get(pool, ()), tpot.get(pool, ())))
            (ttft_before, tpot_before), (ttft_now, tpot_now) = counts[0], counts[-1]
            samples = self._samples.setdefault(pool, deque(maxlen=SAMPLES_MAX))
            samples.append(self._sample(pool, (ttft_before, ttft_now), (tpot_before, tpot_now)))

    def _sample(
        self, pool: str, ttft: tuple[Counts, Counts], tpot: tuple[Counts, Counts]
    ) -> PoolSample:
        snapshot = self._schedulers[pool].snapshot()
        waiting = {priority.value: count for priority, count in snapshot.waiting.items()}
        loads = [worker.loads for worker in self._workers() if worker.pool == pool]
        known = [load.kv_utilization for load in loads if load is not None]
        return PoolSample(
            waiting_interactive=waiting.get("interactive", 0),
            waiting_batch=waiting.get("batch", 0),
            running=sum(target.inflight for target in snapshot.targets),
            kv_utilization=sum(known) / len(known) if known else None,
            ttft_p50_s=percentile(*ttft, 0.5),
            ttft_p95_s=percentile(*ttft, 0.95),
            tpot_p50_s=percentile(*tpot, 0.5),
            tpot_p95_s=percentile(*tpot, 0.95),
        )


def percentile(before: Counts, now: Counts, share: float) -> float | None:
    """Of what was counted in between, by linear interpolation within its bucket; None of nothing.

    What lies above the last finite bound counts as that bound.
    """
    earlier = dict(before)
    added = [(bound, count - earlier.get(bound, 0.0)) for bound, count in now]
    if not added or added[-1][1] <= 0:
        return None
    wanted = share * added[-1][1]
    low, below = 0.0, 0.0
    for bound, count in added:
        if count >= wanted:
            if bound == float("inf"):
                return low
            inside = count - below
            return low + (bound - low) * ((wanted - below) / inside if inside else 1.0)
        low, below = bound, count
    return low
