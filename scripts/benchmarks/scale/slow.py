"""Hundreds of readers that hardly read, beside as many that keep up.

The slow get events of 4 KB and read eight bytes a second. They are to be cut off once they have
accepted nothing for `stall_s`, cost little memory until then, leave nothing claimed, and the others
are to see no difference to as many readers of the same streams who do keep up.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from scripts.benchmarks.relay.native import Load
from scripts.benchmarks.scale.gateway import chat
from scripts.benchmarks.scale.pause import pause
from scripts.benchmarks.scale.rig import Kind, Rig, rig
from scripts.benchmarks.scale.slow_readers import TURN_S, SlowReaders, slow_readers

QUICK: Final = "quick"
SLOW: Final = "slow"
COUNT: Final = 500
PACE: Final = 25.0
PADDING_BYTES: Final = 4_000
TOKENS: Final = 20_000
STALL_S: Final = 5.0
BUFFERS_FULL_S: Final = 3.0
"""Until a slow reader's buffers are full at this pace, with time to spare."""
LATEST_CUT_S: Final = BUFFERS_FULL_S + STALL_S * 1.5 + TURN_S
"""The limit, half of it until the next look, and half a second until it is noticed."""
BEGUN_PER_TURN: Final = 50
SPAN_S: Final = 8.0
SETTLE_S: Final = 2.0
PATIENCE_S: Final = 60.0
BUDGET_BYTES_EACH: Final = 450_000
BUDGET_GAP_X: Final = 1.25
"""Of the gap's p99 while the others read too, or within half an interval of it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """With as many slow readers as were asked for."""

    readers: int
    cut: int
    cut_first_s: float
    cut_last_s: float
    gap_p99_reading_s: float
    gap_p99_beside_s: float
    gap_max_beside_s: float
    bytes_each: float
    """Of the gateway's memory at its most, for each slow reader."""
    held: list[str]
    """What was still claimed when all had gone."""


def _until_cut(running: Rig, readers: SlowReaders, count: int) -> int:
    """Begin them, let them read until all are cut off. The gateway's memory at its most."""
    body = chat(SLOW, tokens=TOKENS, stream=True)
    one, worker, begun, most = running.gateway, running.workers[SLOW][0], 0, 0
    until = time.monotonic() + PATIENCE_S
    while len(readers.cut_after_s) < count and time.monotonic() < until:
        for _ in range(BEGUN_PER_TURN):  # spread over the turn, so that their cuts are as well
            if begun < count:
                readers.begin(one.port, one.key, body)
                begun += 1
            pause(TURN_S / BEGUN_PER_TURN)
        worker.look()
        readers.note_cuts(worker.open)
        readers.turn()
        most = max(most, one.used()[1])
    return most


def _open(running: Rig, model: str, count: int) -> None:
    open_before = running.open()
    running.clients[model].open(count)
    running.clients[model].rate(BEGUN_PER_TURN / TURN_S)
    _until(running, open_before + count)


def _until(running: Rig, count: int) -> None:
    if not running.until_open(count, PATIENCE_S):
        raise RuntimeError(f"{running.open()} streams are open, not {count}")


def look(folder: Path, count: int) -> tuple[Seen, dict[str, Any]]:
    """One run; and the account of those that keep up."""
    kinds = {
        QUICK: Kind(1, PACE, Load(count, TOKENS, 0, model=QUICK)),
        SLOW: Kind(1, PACE, Load(count, TOKENS, 0, model=SLOW), PADDING_BYTES),
    }
    with rig(folder / "slow", kinds, stall_s=STALL_S) as running, slow_readers() as readers:
        quick = running.clients[QUICK]
        _open(running, QUICK, count)
        before = running.gateway.used()[1]
        _open(running, SLOW, count)
        pause(SETTLE_S)
        reading = running.span(SPAN_S)
        running.clients[SLOW].open(0)
        running.workers[SLOW][0].end(count)
        _until(running, count)
        most = _until_cut(running, readers, count)
        told = quick.report()
        account = running.end()
        cuts = sorted(readers.cut_after_s) or [float("nan")]
        seen = Seen(
            readers=count,
            cut=len(readers.cut_after_s),
            cut_first_s=cuts[0],
            cut_last_s=cuts[-1],
            gap_p99_reading_s=reading.gap_p99_s(QUICK),
            gap_p99_beside_s=told["gap_us"][1] / 1e6,
            gap_max_beside_s=told["gap_max_us"] / 1e6,
            bytes_each=(most - before) / count,
            held=running.gateway.held(),
        )
    return seen, account


def measure(folder: Path, count: int = COUNT) -> tuple[dict[str, Any], list[str], list[str]]:
    """For programs, for people, and what is over budget."""
    seen, account = look(folder, count)
    slow = (
        f"{seen.readers} slow readers: {seen.cut} cut off, the first after {seen.cut_first_s:.1f} s"
        f" and the last after {seen.cut_last_s:.1f} (stall_s = {STALL_S:.0f});"
        f" {seen.bytes_each / 1e3:.0f} KB of inferd's memory each at most"
    )
    quick = (
        f"{count} that keep up: gap p99 {seen.gap_p99_reading_s * 1e3:.1f} ms while the others read"
        f" too, {seen.gap_p99_beside_s * 1e3:.1f} ms while they do not"
        f" (most {seen.gap_max_beside_s * 1e3:.0f} ms);"
        f" still claimed in the end: {', '.join(seen.held) or 'nothing'}"
    )
    return {"seen": asdict(seen), "account": account}, [slow, quick], _over(seen, account)


def _over(seen: Seen, account: dict[str, Any]) -> list[str]:
    wrong = [f"still claimed: {one}" for one in seen.held]
    if seen.cut != seen.readers:
        wrong.append(f"{seen.readers - seen.cut} slow readers were never cut off")
    if not STALL_S <= seen.cut_first_s <= seen.cut_last_s <= LATEST_CUT_S:
        wrong.append(f"cut off after {seen.cut_first_s:.1f} to {seen.cut_last_s:.1f} s")
    if seen.bytes_each > BUDGET_BYTES_EACH:
        wrong.append(f"{seen.bytes_each / 1e3:.0f} KB of memory each")
    limit_s = max(BUDGET_GAP_X * seen.gap_p99_reading_s, seen.gap_p99_reading_s + 0.5 / PACE)
    if seen.gap_p99_beside_s > limit_s:
        wrong.append(f"those that keep up see gaps of {seen.gap_p99_beside_s * 1e3:.1f} ms (p99)")
    if account["failed"]:
        wrong.append(f"{account['failed']} of those that keep up failed")
    return wrong
