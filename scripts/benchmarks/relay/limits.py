"""How many streams and requests a second a contender takes before its first tokens are late.

Late: their p99 is over `ADDED_MS_MAX` above what it is without a gateway, in the same run at the
same rate. Each step plays a few seconds, so a search takes a minute or two for each contender.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.benchmarks.relay import native
from scripts.benchmarks.relay.contenders import Running
from scripts.benchmarks.relay.native import Load, Seen
from scripts.benchmarks.scale.search import highest

ADDED_MS_MAX: Final = 2.0
STREAMS_AT_FIRST: Final = 250
STREAMS_MAX: Final = 4_500
RATE_AT_FIRST: Final = 100.0
RATE_MAX: Final = 2_400.0
STEP: Final = 2.0
PRECISION: Final = 1.2
PROBE_RATE: Final = 40.0
"""Short streams a second that are timed beside those that are held."""
SECONDS: Final = 2.5
BEGIN_S: Final = 1.1
TOKENS: Final = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one contender; 0 where not even the least is in time."""

    streams: int
    requests_per_s: float


def _ttft_p99_ms(seen: Seen) -> float:
    """Infinite if anything failed or lacked events."""
    if seen.result["errors"] or seen.result["incomplete"]:
        return float("inf")
    return float(seen.result["ttft_us"][1]) / 1e3


def _play(one: Running, folder: Path, load: Load) -> Seen:
    return native.run_client(folder, one.port, one.key, load, native.used_by(one.pids))


def _at_rate(one: Running, folder: Path, rate: float) -> float:
    load = Load(connections=max(64, round(rate)), tokens=TOKENS, seconds=SECONDS, rate=rate)
    return _ttft_p99_ms(_play(one, folder, load))


def _beside(one: Running, folder: Path, streams: int, events_per_s: float) -> float:
    """First tokens of short streams while so many others are open."""
    lasting = Load(streams, round((SECONDS + 2 * BEGIN_S + 1) * events_per_s), BEGIN_S)
    with ThreadPoolExecutor(1) as thread:
        held = thread.submit(_play, one, folder, lasting)
        # They begin within their first second, and so do those that are timed beside them.
        probe = Load(64, TOKENS, SECONDS + BEGIN_S, rate=PROBE_RATE)
        ttft_ms = _ttft_p99_ms(_play(one, folder, probe))
        return max(ttft_ms, 0.0 if _ttft_p99_ms(held.result()) < float("inf") else float("inf"))


class Search:
    """Remembers what it takes without a gateway, which is asked for by every contender."""

    def __init__(self, direct: Running, folder: Path, events_per_s: float) -> None:
        self._direct = direct
        self._folder = folder
        self._events_per_s = events_per_s
        self._known: dict[tuple[str, float], float] = {}

    def limits(self, one: Running) -> Limits:
        streams = highest(
            lambda count: self._in_time("streams", one, round(count)),
            STREAMS_AT_FIRST,
            step=STEP,
            precision=PRECISION,
            most=STREAMS_MAX,
        )
        rate = highest(
            lambda value: self._in_time("rate", one, value),
            RATE_AT_FIRST,
            step=STEP,
            precision=PRECISION,
            most=RATE_MAX,
        )
        return Limits(round(streams), round(rate, 1))

    def _in_time(self, what: str, one: Running, value: float) -> bool:
        measure: Callable[[Running], float]
        if what == "rate":
            measure = lambda who: _at_rate(who, self._folder, value)  # noqa: E731 - bound twice
        else:
            streams = round(value)
            measure = lambda who: _beside(who, self._folder, streams, self._events_per_s)  # noqa: E731
        key = what, value
        if key not in self._known:
            without = measure(self._direct)
            if not math.isfinite(without):
                return False  # nobody is in time where the way without a gateway is not
            self._known[key] = without
        return measure(one) - self._known[key] <= ADDED_MS_MAX
