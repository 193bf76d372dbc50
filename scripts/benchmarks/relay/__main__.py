"""What a streamed event and a request cost in inferd, beside its field and beside the limit.

`scripts/bench relay [--peers a,b] [--rounds N] [--json]`. In one run, in turn and on the same
native worker and client: inferd with all of its features on, a bare splice (what any Python process
in between must cost), no gateway at all, and the peers. Ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.benchmarks.relay import native
from scripts.benchmarks.relay.contenders import (
    DIRECT,
    INFERD,
    PEERS,
    SPLICE,
    Running,
    UnavailableError,
    running,
)
from scripts.benchmarks.relay.native import Load, Sample
from tests.fakes.engines import free_port

EVENTS_PER_S: Final = 25
SLOW: Final = {"litellm": 25, "portkey": 100}
"""Streams that a core carries of those that cost most: with more only their queue is measured."""
SLOW_RATE: Final = {"litellm": 20.0}
BUDGET_EVENT_X: Final = 1.6
BUDGET_REQUEST_X: Final = 18.0
"""Of the splice, in the same round, median over the rounds."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one contender in one round; microseconds, bytes. NaN where there is none."""

    event_us: float
    request_us: float
    stream_bytes: float
    ttft_p50_us: float
    ttft_p99_us: float
    gap_p99_us: float
    lost: int


def measure(one: Running, folder: Path, streams: int, seconds: float) -> Cost:
    """One round: paced streams, whole answers at a rate, short streams at a rate."""
    look = native.used_by(one.pids)
    _, idle_bytes = look()
    streams = min(streams, SLOW.get(one.name, streams))
    rate = SLOW_RATE.get(one.name, 300.0)
    tokens = round((seconds + 2) * EVENTS_PER_S)
    paced = native.run_client(folder, one.port, one.key, Load(streams, tokens, 1.1), look)
    whole = native.run_client(
        folder, one.port, one.key, Load(128, 8, seconds / 2, rate=rate, stream=False), look
    )
    short = native.run_client(
        folder, one.port, one.key, Load(256, 4, seconds / 2, rate=rate / 2), look
    )
    steady = [sample for sample in paced.samples if sample.open == streams]
    results = (paced.result, whole.result, short.result)
    return Cost(
        event_us=_per(steady, lambda sample: sample.events),
        request_us=_per(whole.samples[1:], lambda sample: sample.requests),
        stream_bytes=(max(s.rss_bytes for s in paced.samples) - idle_bytes) / streams,
        ttft_p50_us=short.result["ttft_us"][0],
        ttft_p99_us=short.result["ttft_us"][1],
        gap_p99_us=paced.result["gap_us"][1],
        lost=sum(result["errors"] + result["incomplete"] for result in results),
    )


def _per(samples: Sequence[Sample], count: Callable[[Sample], int]) -> float:
    """CPU between the first and the last of these moments, a thing counted."""
    if not samples or count(samples[-1]) == count(samples[0]):
        return float("nan")
    used_s = samples[-1].cpu_s - samples[0].cpu_s
    return used_s * 1e6 / (count(samples[-1]) - count(samples[0]))


def play(names: Iterable[str], rounds: int, streams: int, seconds: float) -> dict[str, list[Cost]]:
    """All rounds, the contenders in turn; whoever cannot take part is told on standard error."""
    seen: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        native.build(folder)
        upstream_port = free_port()
        stack.enter_context(native.upstream(folder, upstream_port, EVENTS_PER_S))
        contenders = []
        for name in names:
            try:
                one = stack.enter_context(running(name, folder, free_port(), upstream_port))
                contenders.append(one)
            except UnavailableError as error:
                sys.stderr.write(f"{name} is left out: {error}\n")
        for number in range(rounds):
            for one in contenders:
                sys.stderr.write(f"round {number + 1} of {rounds}: {one.name}\n")
                cost = measure(one, folder, streams, seconds)
                seen.setdefault(one.name, []).append(cost)
    return seen


def ratios(seen: dict[str, list[Cost]], name: str, unit: str, what: str) -> list[float]:
    """Of one contender to another, round by round."""
    return [
        getattr(mine, what) / getattr(other, what)
        for mine, other in zip(seen[name], seen[unit], strict=True)
    ]


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f}/{statistics.median(values):.2f}/{max(values):.2f}"


def table(seen: dict[str, list[Cost]]) -> str:
    """For people: medians, and ratios to the splice as min/median/max over the rounds."""
    header = (
        f"{'':<14} {'us/event':>9} {'x splice':>15} {'us/request':>11} {'x splice':>15}"
        f" {'KB/stream':>10} {'TTFT p50/p99 ms':>16} {'gap p99 ms':>11} {'lost':>5}"
    )
    lines = [header]
    for name, costs in seen.items():
        middle = {
            what: statistics.median(getattr(cost, what) for cost in costs)
            for what in Cost.__slots__
        }
        events = requests = "-"
        if name != DIRECT and SPLICE in seen:
            events = _spread(ratios(seen, name, SPLICE, "event_us"))
            requests = _spread(ratios(seen, name, SPLICE, "request_us"))
        ttft = f"{middle['ttft_p50_us'] / 1e3:.2f}/{middle['ttft_p99_us'] / 1e3:.2f}"
        lines.append(
            f"{name:<14} {middle['event_us']:>9.1f} {events:>15} {middle['request_us']:>11.1f}"
            f" {requests:>15} {middle['stream_bytes'] / 1e3:>10.1f} {ttft:>16}"
            f" {middle['gap_p99_us'] / 1e3:>11.1f} {sum(cost.lost for cost in costs):>5}"
        )
    return "\n".join(lines)


def broken_budgets(seen: dict[str, list[Cost]]) -> list[str]:
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


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/bench relay", description=__doc__)
    options.add_argument(
        "--peers",
        default="",
        help=f"all, or some of {', '.join(PEERS)}; they are installed on demand",
    )
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--streams", type=int, default=1_000)
    options.add_argument("--seconds", type=float, default=6.0)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    peers = PEERS if chosen.peers == "all" else [name for name in chosen.peers.split(",") if name]
    names = (DIRECT, SPLICE, INFERD, *peers)
    seen = play(names, chosen.rounds, chosen.streams, chosen.seconds)
    if chosen.json:
        told = {
            name: {what: [getattr(cost, what) for cost in costs] for what in Cost.__slots__}
            for name, costs in seen.items()
        }
        sys.stdout.write(json.dumps({"benchmark": "relay", "rounds": told}) + "\n")
    else:
        sys.stdout.write(table(seen) + "\n")
    said = broken_budgets(seen)
    sys.stderr.write("".join(f"{line}\n" for line in said))
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
