"""A run over time: first tokens, load and teams' service per window, fairness, and small plots."""

from __future__ import annotations

from collections import Counter
from typing import Final

from inferd.capacity.simulate import Run, Served, quantile

WINDOWS: Final = 40
_BARS: Final = "▁▂▃▄▅▆▇█"


def windows(run: Run, count: int = WINDOWS) -> list[list[Served]]:
    """The measured requests by when they came, in `count` equal windows."""
    if not run.served:
        return []
    times = [one.arrived_s for one in run.served]
    first, span_s = min(times), max(max(times) - min(times), 1e-9)
    found: list[list[Served]] = [[] for _ in range(count)]
    for one in run.served:
        found[min(count - 1, int((one.arrived_s - first) / span_s * count))].append(one)
    return found


def ttft_p95(run: Run, count: int = WINDOWS) -> list[float]:
    """Seconds, per window; 0 where nobody was answered."""
    return [
        quantile(sorted(one.ttft_s for one in window if one.ttft_s is not None), 0.95)
        for window in windows(run, count)
    ]


def arrivals(run: Run, count: int = WINDOWS) -> list[float]:
    """Requests per window."""
    return [float(len(window)) for window in windows(run, count)]


def shares(run: Run) -> dict[str, float]:
    """Of all service, in cost, what each team got; the largest first."""
    got: Counter[str] = Counter()
    for one in run.served:
        got[one.arrival.team] += one.cost
    total = sum(got.values()) or 1
    return {team: cost / total for team, cost in got.most_common()}


def jain(values: list[float]) -> float:
    """1 if all are equal, 1/n if one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def sparkline(values: list[float]) -> str:
    """One character a value, from its least to its largest."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(7, int(value / highest * 8))] for value in values)
