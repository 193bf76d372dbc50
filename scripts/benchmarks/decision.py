"""The decision on two real CPU engines: warm second turns, weighted shares, a batch flood.

Needs the engine and the demo model (`scripts/test` installs both); takes about five minutes. A
second turn must land on its warm worker, teams of weights 1 and 3 must get tokens as 1 to 3 within
10%; what a batch flood does to interactive first tokens over 100 alternating requests is printed,
for the real engines as it is, for the fake one with its budget of 25% on the p95.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import orjson
import uvloop

from tests.fakes.decision_rig import (
    Chat,
    Flood,
    conversations,
    flood,
    median_ms,
    quantile,
    shares,
)
from tests.fakes.engines import launch_fake, standing
from tests.fakes.gateway import MODEL, gateway
from tests.fakes.two_workers import HEAVY, LIGHT, two_workers

QUESTIONS = Path(__file__).parents[2] / "tests" / "data" / "mt_bench_questions.jsonl"
P95_MOVES_MAX = 1.25


async def real(folder: Path, *, requests: int, weights: bool) -> bool:
    questions = [orjson.loads(line)["turns"] for line in QUESTIONS.read_bytes().splitlines()]
    async with two_workers(folder, dummy=not weights) as (inferd, chats):
        # A question shorter than a block leaves nothing that only one of the workers holds.
        long = sorted(questions, key=lambda turns: -len(turns[0]))
        turns = await conversations(chats[HEAVY], long[:20])
        await asyncio.sleep(0.5)
        worker_of = {row.request_id: row.worker for row in inferd.rows()}
        home = sum(worker_of[two.request_id] == worker_of[one.request_id] for one, two in turns)
        cached = min(two.cached_tokens / one.prompt_tokens for one, two in turns)
        print(f"second turns on their warm worker: {home} of {len(turns)}")
        print(f"  of the first turn's prompt cached there, least: {cached:.1%}")
        got = await shares(chats, seconds=20, clients=14)
        ratio = got[HEAVY] / got[LIGHT]
        print(f"tokens of teams of weights 1 and 3 under backlog: 1 to {ratio:.3f}")
        found = await flood(chats[LIGHT], requests, batch=8, batch_tokens=200, settle_s=0.5)
        _print("two real engines", found)
    return home == len(turns) and abs(ratio / 3 - 1) <= 0.1


async def fake(folder: Path, *, requests: int) -> bool:
    with standing(launch_fake(folder, model=MODEL)) as process:
        async with gateway(folder, process, slots=4) as inferd:
            chat = Chat(inferd.http, f"http://{inferd.public}/v1", inferd.key, MODEL)
            found = await flood(chat, requests, batch=8, batch_tokens=100, settle_s=0.3)
    _print("the fake engine", found)
    return found.ratio(0.95) < P95_MOVES_MAX


def _print(what: str, found: Flood) -> None:
    count = len(found.alone) + len(found.flooded)
    print(f"interactive first tokens on {what}, {count} requests alternating with a batch flood:")
    for name, values in (("alone", found.alone), ("flooded", found.flooded)):
        p50, p95 = median_ms(values), quantile(values, 0.95) * 1e3
        print(f"  {name:<8} p50 {p50:7.1f} ms  p95 {p95:7.1f} ms")
    print(f"  ratio    p50 {found.ratio(0.5):7.2f}     p95 {found.ratio(0.95):7.2f}")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=100, help="in each flood")
    options.add_argument(
        "--weights", action="store_true", help="the demo model's own, not two layers"
    )
    options.add_argument("--fake-only", action="store_true", help="no real engine")
    chosen = options.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "fake").mkdir()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            good &= runner.run(fake(folder / "fake", requests=chosen.requests))
        if not chosen.fake_only:
            (folder / "real").mkdir()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                made = real(folder / "real", requests=chosen.requests, weights=chosen.weights)
                good &= runner.run(made)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
