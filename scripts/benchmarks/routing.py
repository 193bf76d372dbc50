"""The routing goals: capacity, reuse, balance, overload and fairness, as ratios within one run.

Everything runs through the product's scheduler over modelled engines, so the figures are the same
on every machine. Without the chat trace only what is made up is run, at the rates wanted; with it
the highest rates are searched for, which takes some minutes. Exits with 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from inferd.capacity.simulate import ENGINES, Scenario, capacity, figures, share_on_time, simulate
from inferd.capacity.workloads import load

Row = tuple[str, float, float, bool]


def at_least(name: str, value: float, wanted: float) -> Row:
    return name, value, wanted, value >= wanted


def at_most(name: str, value: float, wanted: float) -> Row:
    return name, value, wanted, value <= wanted


def chat(trace: Path) -> Iterator[Row]:
    stream = load("conv16k", trace)
    base = Scenario(stream, ENGINES["70b"], 8)
    found = {
        "inferd": capacity(base, 40).rate,
        "inferd without refusals": capacity(replace(base, refuse_late=False), 40).rate,
        "bounded_hash": capacity(replace(base, policy="bounded_hash"), 40).rate,
        "least_tokens": capacity(replace(base, policy="least_tokens"), 40).rate,
        "oracle": capacity(replace(base, oracle=True, refuse_late=False), 40).rate,
    }
    ours = found["inferd"]
    yield at_least("conv16k, 8 x 70B: req/s at 95% on time", ours, 25)
    yield at_least("  against bounded_hash", ours / found["bounded_hash"], 1.28)
    yield at_least("  against least_tokens", ours / found["least_tokens"], 1.28)
    yield at_least("  against no refusals", ours / found["inferd without refusals"], 1.0)
    yield at_least("  against the oracle", ours / found["oracle"], 0.93)
    at_25 = figures(simulate(replace(base, speed=25 / stream.rate)))
    yield at_least("  at 25 req/s: reuse, of the bound", at_25["of_bound"], 0.91)
    yield at_most("  at 25 req/s: short prompts' TTFT p95, s", at_25["short_p95"], 0.45)
    yield at_most("  at 25 req/s: TPOT p95, s", at_25["tpot_p95"], 0.036)
    yield at_most("  at 25 req/s: work max/mean", at_25["work_imbalance"], 1.05)
    half = figures(simulate(replace(base, speed=13 / stream.rate)))
    yield at_most("  at 13 req/s: refused", half["refused"], 0.0)
    twice = simulate(replace(base, speed=52 / stream.rate))
    late = max(
        (one.refused_after_s or 0.0) / (0.8 * max(1.0, one.arrival.prompt_tokens / 4_096))
        for one in twice.served
    )
    over = figures(twice)
    yield at_least("  at 52 req/s: on time", over["on_time"], 0.72)
    yield at_most("  at 52 req/s: short prompts' TTFT p95, s", over["short_p95"], 0.6)
    yield at_most("  at 52 req/s: latest refusal, of its own target", late, 1.0)
    yield at_least("  at 52 req/s: Retry-After kept", over["promises_kept"], 0.95)
    weights = {f"team-{number}": 1 + number % 4 for number in range(30)}
    teams = replace(base, workload=stream.teams(30, seed=5), weights=weights)
    yield at_least(
        "  30 teams of unequal weight, against one", capacity(teams, 40).rate / ours, 0.95
    )


def others(trace: Path) -> Iterator[Row]:
    for name, engine, replicas, rate_max, wanted in (
        ("seedmix", "8b", 16, 420, 290),
        ("seedmix", "70b", 8, 150, 100),
        ("toolmix", "70b", 8, 60, 31),
        ("b2b", "8b", 16, 60, 37),
    ):
        base = Scenario(load(name, trace), ENGINES[engine], replicas)
        ours = capacity(base, rate_max).rate
        plain = capacity(replace(base, refuse_late=False), rate_max).rate
        yield at_least(f"{name}, {replicas} x {engine}: req/s at 95% on time", ours, wanted)
        yield at_least("  against no refusals", ours / plain, 1.0)


def made_up() -> Iterator[Row]:
    for name, engine, replicas, wanted in (
        ("seedmix", "8b", 16, 290),
        ("seedmix", "70b", 8, 100),
        ("b2b", "8b", 16, 37),
    ):
        stream = load(name, None)
        base = Scenario(stream, ENGINES[engine], replicas, speed=wanted / stream.rate)
        hashed = simulate(replace(base, policy="bounded_hash"))
        ours = figures(simulate(base))
        yield at_least(
            f"{name}, {replicas} x {engine} at {wanted}/s: on time", ours["on_time"], 0.95
        )
        yield at_least("  more than by bounded_hash", ours["on_time"] - share_on_time(hashed), 0.0)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("trace", type=Path, nargs="?", help="mooncake_conversation.jsonl.gz")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    missed = 0
    trace: Path | None = chosen.trace
    for part in (chat(trace), others(trace)) if trace else (made_up(),):
        for name, value, wanted, good in part:
            missed += not good
            if chosen.json:
                row = {"goal": name, "value": value, "wanted": wanted, "good": good}
                print(json.dumps(row), flush=True)
            else:
                mark = "ok" if good else "MISSED"
                print(f"{name:<52} {value:9.3f}  wanted {wanted:7.3f}  {mark}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
