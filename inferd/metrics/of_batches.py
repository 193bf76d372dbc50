"""What is counted of batches: `metrics.batch`."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge

from inferd.metrics.declare import Bound, Declarations


@dataclass(frozen=True, slots=True)
class BatchMetrics:
    """Lines and tokens by team, batches by how they ended."""

    lines: Bound[tuple[str, str], Counter]  # by team and outcome
    tokens: Bound[tuple[str, str], Counter]  # by team and kind: prompt, completion
    finished: Bound[str, Counter]  # by status
    in_flight: Bound[str, Gauge]  # by model
    slipped: Counter


class OfBatches(Declarations):
    """Batches are counted by team and model, never by their ids."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        lines = self._counter(
            "inferd_batch_lines", "team outcome", "Lines of batches that are done."
        )
        tokens = self._counter(
            "inferd_batch_tokens", "team kind", "Tokens of lines of batches, by their engines."
        )
        finished = self._counter("inferd_batches", "status", "Batches, by how they ended.")
        in_flight = self._gauge(
            "inferd_batch_lines_in_flight", "model", "Lines of batches that are being served."
        )
        self.batch = BatchMetrics(
            lines=Bound(lambda key: lines.labels(*key)),
            tokens=Bound(lambda key: tokens.labels(*key)),
            finished=Bound(finished.labels),
            in_flight=Bound(in_flight.labels),
            slipped=self._counter(
                "inferd_batches_slipped", "", "Times that a batch was seen to end too late."
            ),
        )
