"""Every metric of inferd, declared in this package and nowhere else.

`Metrics` owns them in the registry it is given; one module an owner of what is counted.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    disable_created_metrics,
    generate_latest,
)

from inferd.metrics.declare import Bound
from inferd.metrics.of_batches import OfBatches
from inferd.metrics.of_files import OfFiles
from inferd.metrics.of_gpus import OfGpus
from inferd.metrics.of_pools import OfPools, PoolMetrics, WorkerMetrics
from inferd.metrics.of_process import OfProcess
from inferd.metrics.of_requests import ModelMetrics, OfRequests, TeamMetrics, TrafficMetrics

__all__ = [
    "EXPOSITION_TYPE",
    "Bound",
    "Metrics",
    "ModelMetrics",
    "PoolMetrics",
    "TeamMetrics",
    "TrafficMetrics",
    "WorkerMetrics",
]

EXPOSITION_TYPE: Final = CONTENT_TYPE_LATEST
"""The content type of `Metrics.exposition`."""


class Metrics(OfRequests, OfPools, OfBatches, OfFiles, OfGpus, OfProcess):
    """Declares every metric in `registry` and hands out what counts them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # When a series began says nothing that its first sample does not.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        super().__init__(registry)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
