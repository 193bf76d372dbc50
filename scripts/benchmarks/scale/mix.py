"""The fleet's peak on one machine: as many requests a second as it carries with all parts on it.

Prompts of 2,000 tokens (8 KB), answers of 300, streamed; 70% to a small model on four workers, at
40 tokens a second, 30% to a large one on two, at 25. A rate holds if nothing is lost, late or
piling up.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from scripts.benchmarks.relay.native import Load
from scripts.benchmarks.scale.load import AS_MANY_AS_COME
from scripts.benchmarks.scale.pause import pause
from scripts.benchmarks.scale.rig import Cpu, Kind, Rig, Span, rig
from scripts.benchmarks.scale.search import highest

SMALL: Final = "chat-8b"
LARGE: Final = "chat-70b"
SHARE: Final = {SMALL: 0.7, LARGE: 0.3}
PACE: Final = {SMALL: 40.0, LARGE: 25.0}
WORKERS: Final = {SMALL: 4, LARGE: 2}
BODY_BYTES: Final = 8_000
TOKENS: Final = 300
PEAK: Final = 300.0
"""Requests a second of the whole fleet."""
STREAMS_MAX: Final = 3_000
"""Of one model, far more than any rate here leads to."""
GAPS_MAX: Final = 2.0
TTFT_MAX_S: Final = 0.8
DONE_MIN: Final = 0.93
SETTLE_S: Final = TOKENS / 25.0 + 0.5
SPAN_S: Final = 5.0
FIRST_RATE: Final = 100.0
BARE_RATE: Final = 100.0
"""Of answers of one token, whose cost is that of a request."""
BUDGET_RATE: Final = 50.0


@dataclass(frozen=True, slots=True)
class Found:
    """The highest rate that held."""

    rate: float
    open: int
    events_per_s: float
    ttft_p99_s: float
    gaps: dict[str, float]
    """p99 by model, in intervals of its pace."""
    cpu: Cpu
    """Seconds of a core, each second."""
    whole: Cpu
    """Microseconds for each request and all of its events."""


def _found(span: Span, rate: float) -> Found:
    ttft_us = max(told["ttft_us"][1] for told in span.told.values())
    return Found(
        rate=rate,
        open=span.open,
        events_per_s=span.events / span.seconds,
        ttft_p99_s=ttft_us / 1e6,
        gaps={name: span.gap_p99_s(name) * pace for name, pace in PACE.items()},
        cpu=Cpu(*(part / span.seconds for part in span.cpu)),
        whole=span.cpu.per(span.events / TOKENS),
    )


def _misses(span: Span, found: Found) -> list[str]:
    """What this rate lacks; nothing if it can go on for ever."""
    said = [
        f"{name}: gap p99 {share:.1f} intervals"
        for name, share in found.gaps.items()
        if share > GAPS_MAX
    ]
    if found.ttft_p99_s > TTFT_MAX_S:
        said.append(f"TTFT p99 {found.ttft_p99_s:.2f} s")
    if span.backlog > span.open:
        said.append(f"{span.backlog:,} events on their way")
    if span.requests < DONE_MIN * found.rate * span.seconds:
        said.append(f"{span.requests / span.seconds:.0f} answers/s")
    if span.failed or span.late:
        said.append(f"{span.failed} failed, {span.late} not begun")
    return said


class Trial:
    """One rig at one rate after another."""

    def __init__(self, running: Rig) -> None:
        self._rig = running
        self.best: Found | None = None
        for one in running.clients.values():
            one.open(AS_MANY_AS_COME)

    def holds(self, rate: float) -> bool:
        """Whether this rate can go on for ever."""
        for name, one in self._rig.clients.items():
            one.rate(rate * SHARE[name])
        pause(SETTLE_S)
        span = self._rig.span(SPAN_S)
        found = _found(span, rate)
        misses = _misses(span, found)
        sys.stderr.write(
            f"{rate:.0f} requests/s: {'; '.join(misses) or 'held'} ({span.in_cores()})\n"
        )
        if not misses and (self.best is None or rate > self.best.rate):
            self.best = found
        return not misses


def _kinds(tokens: int) -> dict[str, Kind]:
    return {
        name: Kind(
            WORKERS[name],
            PACE[name],
            Load(STREAMS_MAX, tokens, 0, body_bytes=BODY_BYTES, model=name),
        )
        for name in SHARE
    }


def request_alone(folder: Path) -> Cpu:
    """Microseconds for a request of this size whose answer is a single token."""
    with rig(folder / "bare", _kinds(1)) as running:
        for name, one in running.clients.items():
            one.open(AS_MANY_AS_COME)
            one.rate(BARE_RATE * SHARE[name])
        pause(1.5)
        span = running.span(SPAN_S)
        running.end()
        return span.cpu.per(span.requests)


def highest_rate(folder: Path) -> tuple[Found | None, dict[str, Any]]:
    """And the account of every event."""
    with rig(folder / "mix", _kinds(TOKENS)) as running:
        trial = Trial(running)
        highest(trial.holds, FIRST_RATE, step=1.2, precision=1.1)
        return trial.best, running.end()


def measure(folder: Path) -> tuple[dict[str, Any], list[str], list[str]]:
    """For programs, for people, and what is over budget."""
    bare = request_alone(folder)
    best, account = highest_rate(folder)
    told = {"request": bare, "best": best and asdict(best), "account": account}
    if best is None:
        return told, [], ["no rate held"]
    event = Cpu(*((all_ - one) / TOKENS for all_, one in zip(best.whole, bare, strict=True)))
    told["event"] = event
    wrong = []
    if account["lost"] or account["failed"] or account["disordered"]:
        wrong.append(f"not every event arrived, in order: {account}")
    if best.rate < BUDGET_RATE:
        wrong.append(f"only {best.rate:.0f} requests/s held")
    return told, _in_words(best, bare, event), wrong


def _in_words(best: Found, bare: Cpu, event: Cpu) -> list[str]:
    gaps = ", ".join(f"{name} {share:.2f}" for name, share in best.gaps.items())
    first = (
        f"{best.rate:.0f} requests/s held, {best.open:,} streams open, {best.events_per_s:,.0f}"
        f" events/s; TTFT p99 {best.ttft_p99_s * 1e3:.0f} ms; gap p99 in intervals: {gaps}"
    )
    said = [
        first,
        f"{'':10} {'us/request':>11} {'us/event':>9} {'ms/request of 300':>18} {'cores':>6}",
    ]
    said += [
        f"{name:10} {one:>11.0f} {each:>9.1f} {whole / 1e3:>18.2f} {cores:>6.2f}"
        for name, one, each, whole, cores in zip(
            ("inferd", "client", "worker"), bare, event, best.whole, best.cpu, strict=True
        )
    ]
    alone, everything = 1e6 / best.whole.gateway, 1e6 / sum(best.whole)
    said.append(
        f"a core that does nothing else carries {alone:.0f} requests/s of inferd, one that is"
        f" client and worker too {everything:.0f}; {PEAK:.0f}/s take {PEAK / alone:.1f} cores of"
        " inferd"
    )
    return said
