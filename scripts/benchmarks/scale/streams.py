"""How fast 4,500 streams at once can be, and how many can be at 25 tokens a second.

The same streams stay open while their pace is changed, so that one run finds the highest at which
all keep up: no later than one interval (gap p99 within two), nothing piling up, nothing lost.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from scripts.benchmarks.relay.native import Load
from scripts.benchmarks.scale.pause import pause
from scripts.benchmarks.scale.rig import Cpu, Kind, Rig, Span, rig
from scripts.benchmarks.scale.search import highest

MODEL: Final = "chat"
STREAMS: Final = 4_500
PACE: Final = 25.0
GAPS_MAX: Final = 2.0
"""A gap's p99, in intervals of the pace."""
KEPT_UP_MIN: Final = 0.97
"""Of the events that the pace asks for, so many must come."""
BEGUN_PER_S: Final = 300.0
PACE_AT_FIRST: Final = 2.0
MOST_AT_FIRST: Final = 1_200
SETTLE_S: Final = 1.5
SETTLE_S_MAX: Final = 10.0
SPAN_S: Final = 4.0
TOKENS: Final = 20_000
BUDGET_BYTES: Final = 250_000_000
BUDGET_PACE: Final = 4.0
BUDGET_STREAMS: Final = 700
"""Far below what is seen on two cores: what a slide of everything by half would break."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best that held."""

    streams: int
    pace: float
    bytes_: int
    """Of the gateway's memory, for these streams."""
    events_per_s: float
    gap_p50_s: float
    gap_p99_s: float
    gap_max_s: float
    cpu: Cpu
    """Seconds of a core, each second."""
    event: Cpu
    """Microseconds for each event."""


def _misses(span: Span, streams: int, pace: float) -> list[str]:
    """What so many streams at this pace lack; nothing if they keep up."""
    events = streams * pace * span.seconds
    found = []
    if span.gap_p99_s(MODEL) > GAPS_MAX / pace:
        found.append(f"gap p99 {span.gap_p99_s(MODEL) * 1e3:.0f} ms")
    if span.backlog > streams:
        found.append(f"{span.backlog:,} events on their way")
    if span.events < KEPT_UP_MIN * events:
        found.append(f"{span.events / events:.0%} of the events")
    if span.failed:
        found.append(f"{span.failed} streams failed")
    return found


class Trial:
    """One rig whose streams and pace are changed until nothing better holds."""

    def __init__(self, running: Rig) -> None:
        self._rig = running
        self._client = running.clients[MODEL]
        self._worker = running.workers[MODEL][0]
        self._idle_bytes = running.gateway.used()[1]
        self.best: Found | None = None
        self._client.rate(BEGUN_PER_S)

    def holds(self, streams: int, pace: float) -> bool:
        """Whether so many streams keep up with this pace."""
        running = self._rig
        more = streams - running.open()
        self._client.open(streams)
        if more < 0:
            self._worker.end(-more)
        if more > 0:
            self._worker.pace(min(pace, PACE_AT_FIRST))
        began_s = abs(more) / BEGUN_PER_S + SETTLE_S_MAX
        if not running.until_open(streams, began_s):
            raise RuntimeError(f"{running.open()} streams are open, not {streams}")
        self._worker.pace(pace)
        pause(SETTLE_S)
        span = running.span(SPAN_S)
        misses = _misses(span, streams, pace)
        sys.stderr.write(
            f"{streams:,} streams at {pace:.1f} tokens/s: {'; '.join(misses) or 'held'}"
            f" ({span.in_cores()})\n"
        )
        if not misses and (
            self.best is None or streams * pace > self.best.streams * self.best.pace
        ):
            self.best = self._found(span, streams, pace)
        if misses:
            self._drain(streams)
        return not misses

    def _drain(self, streams: int) -> None:
        """What piled up is no fault of the next trial."""
        self._worker.pace(PACE_AT_FIRST)
        until = time.monotonic() + SETTLE_S_MAX
        while self._rig.backlog() > streams / 10 and time.monotonic() < until:
            pause(0.2)

    def _found(self, span: Span, streams: int, pace: float) -> Found:
        told = span.told[MODEL]
        return Found(
            streams=streams,
            pace=pace,
            bytes_=self._rig.gateway.used()[1] - self._idle_bytes,
            events_per_s=span.events / span.seconds,
            gap_p50_s=told["gap_us"][0] / 1e6,
            gap_p99_s=span.gap_p99_s(MODEL),
            gap_max_s=told["gap_max_us"] / 1e6,
            cpu=Cpu(*(part / span.seconds for part in span.cpu)),
            event=span.cpu.per(span.events),
        )


def _kind(streams: int) -> Kind:
    return Kind(1, PACE_AT_FIRST, Load(streams, TOKENS, 0, model=MODEL))


def fastest(folder: Path, streams: int) -> tuple[Found | None, dict[str, Any]]:
    """All streams at the highest pace; and the account of every event."""
    with rig(folder / "fastest", {MODEL: _kind(streams)}) as running:
        trial = Trial(running)
        highest(lambda pace: trial.holds(streams, pace), 30_000 / streams)
        return trial.best, running.end()


def most(folder: Path, streams: int) -> tuple[Found | None, dict[str, Any]]:
    """The most streams at 25 tokens a second; and the account of every event."""
    with rig(folder / "most", {MODEL: _kind(streams)}) as running:
        trial = Trial(running)
        highest(lambda count: trial.holds(round(count), PACE), MOST_AT_FIRST, most=streams)
        return trial.best, running.end()


def measure(folder: Path, streams: int = STREAMS) -> tuple[dict[str, Any], list[str], list[str]]:
    """For programs, for people, and what is over budget."""
    told: dict[str, Any] = {}
    header = (
        f"{'streams':>8} {'tokens/s each':>14} {'events/s':>9} {'gap p50/p99/max ms':>20}"
        f" {'MB':>6} {'cores: inferd, client, worker':>30} {'us/event':>20}"
    )
    said = [header]
    wrong = []
    for name, how in (("fastest", fastest), ("most", most)):
        best, account = how(folder, streams)
        told[name] = {"best": best and asdict(best), "account": account}
        if best is None:
            wrong.append(f"{name}: nothing held")
            continue
        said.append(_row(best))
        if account["lost"] or account["failed"] or account["disordered"]:
            wrong.append(f"{name}: not every event arrived, in order: {account}")
        if best.bytes_ > BUDGET_BYTES:
            wrong.append(f"{name}: {best.bytes_ / 1e6:.0f} MB for {best.streams} streams")
        low = best.pace < BUDGET_PACE if name == "fastest" else best.streams < BUDGET_STREAMS
        if low and streams == STREAMS:
            wrong.append(f"{name}: only {best.streams} streams at {best.pace:.1f} tokens/s")
    return told, said, wrong


def _row(best: Found) -> str:
    gaps = f"{best.gap_p50_s * 1e3:.0f}/{best.gap_p99_s * 1e3:.0f}/{best.gap_max_s * 1e3:.0f}"
    cores = ", ".join(f"{part:.2f}" for part in best.cpu)
    event = ", ".join(f"{part:.1f}" for part in best.event)
    return (
        f"{best.streams:>8,} {best.pace:>14.1f} {best.events_per_s:>9,.0f} {gaps:>20}"
        f" {best.bytes_ / 1e6:>6.0f} {cores:>30} {event:>20}"
    )
