"""What is known of GPUs: `metrics.gpu[name]`, by the names of `CUDA_VISIBLE_DEVICES`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from inferd.metrics.declare import Bound, Declarations


class Reading(Protocol):
    """As of now; None: it cannot be told."""

    @property
    def memory_used_bytes(self) -> int: ...
    @property
    def temperature_c(self) -> int | None: ...
    @property
    def utilization(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class GpuMetrics:
    """Of one device."""

    memory_used_bytes: Gauge
    temperature_c: Gauge
    utilization: Gauge
    quarantined: Gauge
    events: Bound[str, Counter]  # by kind

    def show(self, reading: Reading | None, quarantined: bool) -> None:  # noqa: FBT001 - a value
        self.quarantined.set(quarantined)
        self.memory_used_bytes.set(nan if reading is None else reading.memory_used_bytes)
        temperature_c = None if reading is None else reading.temperature_c
        utilization = None if reading is None else reading.utilization
        self.temperature_c.set(nan if temperature_c is None else temperature_c)
        self.utilization.set(nan if utilization is None else utilization)


class OfGpus(Declarations):
    """One of each for a device."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._gpu_memory = self._gauge(
            "inferd_gpu_memory_used_bytes", "gpu", "Memory in use, by whomever."
        )
        self._gpu_temperature = self._gauge(
            "inferd_gpu_temperature_celsius", "gpu", "Its temperature; NaN: unknown."
        )
        self._gpu_utilization = self._gauge(
            "inferd_gpu_utilization", "gpu", "Share of time in which it computed; NaN: unknown."
        )
        self._gpu_quarantined = self._gauge(
            "inferd_gpu_quarantined", "gpu", "1 for a device that no engine is given."
        )
        self._gpu_events = self._counter(
            "inferd_gpu_events", "gpu kind", "Errors reported, and reasons for a quarantine."
        )
        self.gpu = Bound(self._bind_gpu)

    def _bind_gpu(self, name: str) -> GpuMetrics:
        return GpuMetrics(
            memory_used_bytes=self._gpu_memory.labels(name),
            temperature_c=self._gpu_temperature.labels(name),
            utilization=self._gpu_utilization.labels(name),
            quarantined=self._gpu_quarantined.labels(name),
            events=Bound(partial(self._gpu_events.labels, name)),
        )
