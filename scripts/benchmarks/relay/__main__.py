"""What a streamed event and a request cost in inferd, beside its field and beside the limit.

`scripts/bench relay [--peers a,b] [--rounds N] [--limits] [--docs FOLDER] [--json]`. In one run, in
turn and on the same native worker and client: inferd with all of its features on, a bare splice
(what any Python process in between must cost), no gateway at all, and the peers. Ratios are taken
within a round. A round takes about 15 s for each contender. With `--limits` it is searched instead
how much each takes before its first tokens are late: two to four minutes for each contender.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
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
from scripts.benchmarks.relay.limits import Limits, Search
from scripts.benchmarks.relay.native import Load, Sample, Seen
from scripts.benchmarks.relay.plot import draw
from scripts.benchmarks.relay.report import (
    Cost,
    broken_budgets,
    limit_rows,
    markdown,
    rows,
    table,
)
from tests.fakes.engines import free_port

EVENTS_PER_S: Final = 25
SLOW: Final = {"litellm": 25, "portkey": 100}
"""Streams that a core carries of those that cost most: with more only their queue is measured."""
SLOW_RATE: Final = {"litellm": 20.0}


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
        ttft_p50_us=_if_any(short, "ttft_us", 0),
        ttft_p99_us=_if_any(short, "ttft_us", 1),
        gap_p99_us=_if_any(paced, "gap_us", 1),
        lost=sum(result["errors"] + result["incomplete"] for result in results),
    )


def _if_any(seen: Seen, what: str, which: int) -> float:
    """NaN where no event came: there is no time to tell."""
    return float(seen.result[what][which]) if seen.samples[-1].events else float("nan")


def _per(samples: Sequence[Sample], count: Callable[[Sample], int]) -> float:
    """CPU between the first and the last of these moments, a thing counted."""
    if not samples or count(samples[-1]) == count(samples[0]):
        return float("nan")
    used_s = samples[-1].cpu_s - samples[0].cpu_s
    return used_s * 1e6 / (count(samples[-1]) - count(samples[0]))


@contextmanager
def contending(names: Iterable[str]) -> Iterator[tuple[Path, list[Running]]]:
    """All that take part, each in front of the same worker; who cannot is told on stderr."""
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
        yield folder, contenders


def play(names: Iterable[str], rounds: int, streams: int, seconds: float) -> dict[str, list[Cost]]:
    """All rounds, the contenders in turn."""
    seen: dict[str, list[Cost]] = {}
    with contending(names) as (folder, contenders):
        for number in range(rounds):
            for one in contenders:
                sys.stderr.write(f"round {number + 1} of {rounds}: {one.name}\n")
                cost = measure(one, folder, streams, seconds)
                seen.setdefault(one.name, []).append(cost)
    return seen


def search(names: Iterable[str]) -> dict[str, Limits]:
    """What each takes before it is late."""
    found: dict[str, Limits] = {}
    with contending(names) as (folder, (direct, *others)):
        searching = Search(direct, folder, EVENTS_PER_S)
        for one in others:
            sys.stderr.write(f"limits of {one.name}\n")
            found[one.name] = searching.limits(one)
    return found


def tell(lines: list[list[str]], docs: Path | None, name: str) -> None:
    """On standard output, and as `name` for the docs."""
    sys.stdout.write(table(lines) + "\n")
    if docs is not None:
        (docs / name).write_text(markdown(lines), encoding="utf-8")


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
    options.add_argument(
        "--limits", action="store_true", help="instead: how much each takes before it is late"
    )
    options.add_argument(
        "--docs", type=Path, help="a folder for the table, in Markdown, and the plot"
    )
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    peers = PEERS if chosen.peers == "all" else [name for name in chosen.peers.split(",") if name]
    names = (DIRECT, SPLICE, INFERD, *peers)
    if chosen.limits:
        limits = search(names)
        if chosen.json:
            most = {name: asdict(limit) for name, limit in limits.items()}
            sys.stdout.write(json.dumps({"benchmark": "relay", "limits": most}) + "\n")
        else:
            tell(list(limit_rows(limits)), chosen.docs, "relay-limits.md")
        return 0
    seen = play(names, chosen.rounds, chosen.streams, chosen.seconds)
    if chosen.docs is not None:
        (chosen.docs / "relay.svg").write_text(draw(seen), encoding="utf-8")
    if chosen.json:
        told = {
            name: {what: [getattr(cost, what) for cost in costs] for what in Cost.__slots__}
            for name, costs in seen.items()
        }
        sys.stdout.write(json.dumps({"benchmark": "relay", "rounds": told}) + "\n")
    else:
        tell(list(rows(seen)), chosen.docs, "relay.md")
    said = broken_budgets(seen)
    sys.stderr.write("".join(f"{line}\n" for line in said))
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
