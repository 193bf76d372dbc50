"""How fast things go, from two looks at the metrics of a server. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Look:
    """One exposition at a loop time in seconds."""

    at: float
    samples: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    def total(self, name: str, **labels: str) -> float:
        """The sum of a sample's series that have these labels."""
        wanted = frozenset(labels.items())
        series = self.samples.get(name, {})
        return sum(value for labelled, value in series.items() if wanted <= labelled)

    def values(self, name: str, label: str) -> set[str]:
        """The values of a label."""
        series = self.samples.get(name, {})
        return {value for labelled in series for key, value in labelled if key == label}


def read_look(text: str, at: float) -> Look:
    """What `/metrics` says, of inferd's own metrics."""
    samples: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("inferd_"):
                samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return Look(at, samples)


def per_second(now: Look, before: Look, name: str, **labels: str) -> float:
    """How fast a counter grows; 0 where it began again."""
    elapsed_s = now.at - before.at
    grown = now.total(name, **labels) - before.total(name, **labels)
    return max(0.0, grown / elapsed_s) if elapsed_s > 0 else 0.0


def quantile(now: Look, before: Look, name: str, share: float, **labels: str) -> float | None:
    """A quantile of what a histogram has observed between two looks; None where that is nothing."""
    bucket = f"{name}_bucket"
    counts = {
        float(le): now.total(bucket, le=le, **labels) - before.total(bucket, le=le, **labels)
        for le in now.values(bucket, "le")
    }
    bounds = sorted(counts)
    if not bounds or counts[bounds[-1]] <= 0:
        return None
    wanted = share * counts[bounds[-1]]
    lower, below = 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= wanted:
            if bound == float("inf"):
                return lower
            part = (wanted - below) / (counts[bound] - below) if counts[bound] > below else 1.0
            return lower + (bound - lower) * part
        lower, below = bound, counts[bound]
    return lower
