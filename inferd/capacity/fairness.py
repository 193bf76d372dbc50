"""How evenly a run served teams that waited: Jain's index per window, and the widest service gap.

Pure. A team counts as backlogged while one of its requests waits. Service is charged when a request
is placed, at what it cost in the end, divided by the team's weight.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from inferd.capacity.simulate import Run
from inferd.capacity.windows import jain
from inferd.routing.scheduler import LOCALITY_S, SLACK_S

MEASURED_S: Final = 90.0
"""Length of a window: many requests of each team."""

OVERLAP: Final = 3
"""Windows that each moment is in."""

Spans = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Fairness:
    """`gap` and `bound` in units of cost per weight; `worst_jain` over windows of two teams on."""

    windows: int
    worst_jain: float
    mean_jain: float
    teams_mean: float
    gap: float
    bound: float
    pairs: int


def fairness(run: Run, window_s: float = MEASURED_S) -> Fairness:
    """Of the measured requests of a run."""
    scenario = run.scenario
    weight = scenario.weights
    service: dict[str, list[tuple[float, float]]] = defaultdict(list)
    waits: dict[str, Spans] = defaultdict(list)
    for one in run.served:
        team = one.arrival.team
        if one.granted_s is not None:
            service[team].append((one.granted_s, one.cost / weight.get(team, 1)))
            waits[team].append((one.arrived_s, one.granted_s))
        elif one.refused_after_s is not None:
            waits[team].append((one.arrived_s, one.arrived_s + one.refused_after_s))
    for rows in service.values():
        rows.sort()
    backlogs = {team: _joined(spans) for team, spans in waits.items()}
    indices, teams = _per_window(service, backlogs, window_s)
    gap, pairs = 0.0, 0
    for first, second in combinations(sorted(backlogs), 2):
        for both in _overlaps(backlogs[first], backlogs[second]):
            pairs += 1
            gap = max(gap, _range(service[first], service[second], both))
    return Fairness(
        windows=len(indices),
        worst_jain=min(indices, default=1.0),
        mean_jain=sum(indices) / len(indices) if indices else 1.0,
        teams_mean=sum(teams) / len(teams) if teams else 0.0,
        gap=gap,
        bound=_bound(run),
        pairs=pairs,
    )


def _bound(run: Run) -> float:
    """Locality and slack of the pool, and twice the larger of the dearest request and the pool."""
    scenario = run.scenario
    speed = scenario.replicas * 1e3 / scenario.engine.cost.b_ms
    allowed_s = LOCALITY_S + (SLACK_S if scenario.refuse_late else 0.0)
    dearest = max((one.cost for one in run.served), default=0)
    return allowed_s * speed + 2 * max(dearest, scenario.replicas * scenario.engine.kv_tokens)


def _per_window(
    service: dict[str, list[tuple[float, float]]],
    backlogs: dict[str, Spans],
    window_s: float,
) -> tuple[list[float], list[int]]:
    times = [at for rows in service.values() for at, _ in rows]
    if not times:
        return [], []
    indices, teams = [], []
    at_s = min(times)
    while at_s + window_s <= max(times):
        until_s = at_s + window_s
        busy = [
            team
            for team, spans in backlogs.items()
            if any(start <= at_s and end >= until_s for start, end in spans)
        ]
        if len(busy) > 1:
            indices.append(jain([_served(service[team], at_s, until_s) for team in busy]))
            teams.append(len(busy))
        at_s += window_s / OVERLAP
    return indices, teams


def _served(rows: list[tuple[float, float]], start: float, end: float) -> float:
    first, last = bisect_left(rows, (start, 0.0)), bisect_left(rows, (end, 0.0))
    return sum(cost for _, cost in rows[first:last])


def _range(
    one: list[tuple[float, float]], other: list[tuple[float, float]], span: tuple[float, float]
) -> float:
    """The widest that the difference of both services moved within the span."""
    start, end = span
    moves = [(at, cost) for at, cost in one if start <= at < end]
    moves += [(at, -cost) for at, cost in other if start <= at < end]
    lowest = highest = level = 0.0
    for _, move in sorted(moves):
        level += move
        lowest, highest = min(lowest, level), max(highest, level)
    return highest - lowest


def _joined(spans: Spans) -> Spans:
    joined: Spans = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _overlaps(one: Spans, other: Spans) -> Spans:
    found: Spans = []
    first = second = 0
    while first < len(one) and second < len(other):
        start = max(one[first][0], other[second][0])
        end = min(one[first][1], other[second][1])
        if start < end:
            found.append((start, end))
        if one[first][1] < other[second][1]:
            first += 1
        else:
            second += 1
    return found
