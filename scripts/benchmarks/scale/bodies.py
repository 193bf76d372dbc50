"""Requests of 400 KB beside small ones, and who waits for them.

Small streams at a steady rate, first alone and then beside large whole requests. Meanwhile another
process asks for /healthz in a row: what it waits, without what anybody waited for a processor, is a
stall of the event loop.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from scripts.benchmarks.files import ask_healthz, tail
from scripts.benchmarks.relay.native import Load
from scripts.benchmarks.scale.load import AS_MANY_AS_COME
from scripts.benchmarks.scale.pause import pause
from scripts.benchmarks.scale.rig import Kind, Rig, Span, rig

SMALL: Final = "small"
LARGE: Final = "large"
SMALL_RATE: Final = 100.0
LARGE_RATE: Final = 20.0
BODY_BYTES: Final = 400_000
WARM_S: Final = 2.0
SPAN_S: Final = 10.0
START_S_MAX: Final = 60.0
BUDGET_STALL_MS: Final = 10.0
BUDGET_ADDED_P50_MS: Final = 2.0
BUDGET_ADDED_P99_MS: Final = 20.0
_SPAWNING: Final = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Seen:
    """By others, in one span of time. Milliseconds."""

    ttft_p50_ms: float
    ttft_p99_ms: float
    stall_ms: float
    """What one of a thousand /healthz waited."""
    stall_max_ms: float
    large_per_s: float
    failed: int


@contextmanager
def _asked(running: Rig) -> Iterator[list[float]]:
    """Waits of /healthz meanwhile, sorted, once the scope has ended."""
    begun, ended = _SPAWNING.Event(), _SPAWNING.Event()
    heard, told = _SPAWNING.Pipe(duplex=False)
    one = running.gateway
    asker = _SPAWNING.Process(target=ask_healthz, args=(one.port, one.pid, begun, ended, told))
    asker.start()
    if not begun.wait(START_S_MAX):
        raise RuntimeError("nobody asks")
    waits_ms: list[float] = []
    try:
        yield waits_ms
    finally:
        ended.set()
        waits_ms += heard.recv()
        asker.join()


def _look(running: Rig) -> Seen:
    with _asked(running) as waits_ms:
        pause(WARM_S)
        before = running.clients[LARGE].report()["requests"]
        span: Span = running.span(SPAN_S)
    small, large = span.told[SMALL], span.told[LARGE]
    return Seen(
        ttft_p50_ms=small["ttft_us"][0] / 1e3,
        ttft_p99_ms=small["ttft_us"][1] / 1e3,
        stall_ms=tail(waits_ms),
        stall_max_ms=waits_ms[-1],
        large_per_s=(large["requests"] - before) / span.seconds,
        failed=span.failed,
    )


def measure(folder: Path) -> tuple[dict[str, Any], list[str], list[str]]:
    """For programs, for people, and what is over budget."""
    kinds = {
        SMALL: Kind(1, 100.0, Load(200, 4, 0, model=SMALL)),
        LARGE: Kind(1, 100.0, Load(64, 4, 0, body_bytes=BODY_BYTES, stream=False, model=LARGE)),
    }
    with rig(folder / "bodies", kinds) as running:
        for one in running.clients.values():
            one.open(AS_MANY_AS_COME)
        running.clients[SMALL].rate(SMALL_RATE)
        alone = _look(running)
        running.clients[LARGE].rate(LARGE_RATE)
        beside = _look(running)
        account = running.end()
    told = {"alone": asdict(alone), "beside": asdict(beside), "account": account}
    said = [f"{'':24} {'TTFT p50/p99 ms':>16} {'stalls p99.9/most ms':>21} {'400 KB/s':>9}"]
    said += [
        f"{name:24} {seen.ttft_p50_ms:>9.2f}/{seen.ttft_p99_ms:<6.2f}"
        f" {seen.stall_ms:>13.1f}/{seen.stall_max_ms:<7.1f} {seen.large_per_s:>9.1f}"
        for name, seen in (("small ones alone", alone), ("beside 400 KB", beside))
    ]
    return told, said, _over(alone, beside)


def _over(alone: Seen, beside: Seen) -> list[str]:
    wrong = []
    if beside.stall_ms > BUDGET_STALL_MS:
        wrong.append(f"stalls of {beside.stall_ms:.1f} ms, above {BUDGET_STALL_MS:.0f}")
    for name, limit in (("p50", BUDGET_ADDED_P50_MS), ("p99", BUDGET_ADDED_P99_MS)):
        what = f"ttft_{name}_ms"
        added = getattr(beside, what) - getattr(alone, what)
        if added > limit:
            wrong.append(f"small requests' TTFT {name} is {added:.1f} ms later, above {limit}")
    if failed := alone.failed + beside.failed:
        wrong.append(f"{failed} requests failed")
    return wrong
