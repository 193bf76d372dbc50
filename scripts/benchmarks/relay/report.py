"""What a run found, in words: a table for people, one for the docs, the budgets that are broken."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scripts.benchmarks.relay.contenders import DIRECT, INFERD, SPLICE
from scripts.benchmarks.relay.limits import Limits

BUDGET_EVENT_X: Final = 1.6
BUDGET_REQUEST_X: Final = 18.0
"""Of the splice, in the same round, median over the rounds."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one contender in one round; microseconds, bytes. NaN where there is none."""

    event_us: float
    request_us: float
    stream_bytes: float
    """More than it held before the round: after the first one much of it is there already."""
    ttft_p50_us: float
    ttft_p99_us: float
    gap_p99_us: float
    lost: int


Rounds = Mapping[str, Sequence[Cost]]


def ratios(seen: Rounds, name: str, unit: str, what: str) -> list[float]:
    """Of one contender to another, round by round."""
    return [
        getattr(mine, what) / getattr(other, what)
        for mine, other in zip(seen[name], seen[unit], strict=True)
    ]


def added_ms(seen: Rounds, name: str, what: str) -> list[float]:
    """What one contender adds to a time without a gateway, round by round."""
    return [
        (getattr(mine, what) - getattr(other, what)) / 1e3
        for mine, other in zip(seen[name], seen[DIRECT], strict=True)
    ]


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f}/{statistics.median(values):.2f}/{max(values):.2f}"


HEADER: Final = (
    "",
    "us/event",
    "x splice",
    "us/request",
    "x splice",
    "TTFT +p50 ms",
    "TTFT +p99 ms",
    "gap p99 ms",
    "KB/stream, first round",
    "later",
    "lost",
)
LIMITS_HEADER: Final = ("", "streams", "requests/s")


def limit_rows(limits: Mapping[str, Limits]) -> Iterator[list[str]]:
    """The header, then a line of each contender."""
    yield [*LIMITS_HEADER]
    for name, most in limits.items():
        yield [name, str(most.streams), f"{most.requests_per_s:.0f}"]


def rows(seen: Rounds) -> Iterator[list[str]]:
    """The header, then a line of each contender: medians; ratios as min/median/max."""
    yield [*HEADER]
    for name, costs in seen.items():
        middle = {
            what: statistics.median(getattr(cost, what) for cost in costs)
            for what in Cost.__slots__
        }
        between = name != DIRECT
        events = _spread(ratios(seen, name, SPLICE, "event_us")) if between else "-"
        requests = _spread(ratios(seen, name, SPLICE, "request_us")) if between else "-"
        later = [cost.stream_bytes / 1e3 for cost in costs[1:]]
        yield [
            name,
            f"{middle['event_us']:.1f}",
            events,
            f"{middle['request_us']:.1f}",
            requests,
            _spread(added_ms(seen, name, "ttft_p50_us")) if between else "-",
            _spread(added_ms(seen, name, "ttft_p99_us")) if between else "-",
            f"{middle['gap_p99_us'] / 1e3:.1f}",
            f"{costs[0].stream_bytes / 1e3:.1f}",
            f"{statistics.median(later):.1f}" if later else "-",
            str(sum(cost.lost for cost in costs)),
        ]


def table(lines: Sequence[Sequence[str]]) -> str:
    """For a terminal."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """For the docs."""
    header, *lines = lines
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, rule, *lines))


def broken_budgets(seen: Rounds) -> list[str]:
    """What inferd costs too much of, in the splice's units."""
    limits = (("event_us", BUDGET_EVENT_X), ("request_us", BUDGET_REQUEST_X))
    said = []
    for what, limit in limits:
        ratio = statistics.median(ratios(seen, INFERD, SPLICE, what))
        if ratio > limit:
            said.append(f"over budget: {what} is {ratio:.2f} x the splice's, more than {limit}")
    if lost := sum(cost.lost for cost in seen[INFERD]):
        said.append(f"{lost} requests failed or lacked events")
    return said
