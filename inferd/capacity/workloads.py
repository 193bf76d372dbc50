"""Request streams for simulations: real traces by path, inferd's own ledger, and synthetic mixes.

No text anywhere: a request is a time, lengths, a team, and the chained keys of its prompt's blocks.
A synthetic mix is the same for the same seed.
"""

from __future__ import annotations

import csv
import gzip
import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

import orjson

from inferd.errors import StartError
from inferd.inference import SYSTEM_TEAM

TICK_S_MAX: Final = 3.1
"""The chat trace's clock ticks about every three seconds: arrivals are spread within a tick."""
TRACE_BLOCK_TOKENS: Final = 512
BLOCK_TOKENS: Final = 64
CONV16K_TOKENS: Final = 16_384
TOOLMIX_TOKENS: Final = 65_536


class Arrival(NamedTuple):
    """One request: seconds from the start, tokens, and who asks. `keys` name its whole blocks."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    keys: tuple[int, ...]
    team: str = "team-0"
    is_batch: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """Arrivals in order of time."""

    name: str
    arrivals: tuple[Arrival, ...]
    block_tokens: int

    @property
    def rate(self) -> float:
        """Requests per second, as recorded."""
        span_s = self.arrivals[-1].at_s - self.arrivals[0].at_s
        return len(self.arrivals) / span_s if span_s > 0 else 1.0

    def bound(self, warm: float) -> float:
        """Share of prompt tokens that one unbounded cache would hit, after the warm-up share."""
        seen: set[int] = set()
        hit = total = 0
        for number, one in enumerate(self.arrivals):
            if number == int(len(self.arrivals) * warm):
                hit = total = 0
            held = next((n for n, key in enumerate(one.keys) if key not in seen), len(one.keys))
            hit += min(held * self.block_tokens, one.prompt_tokens - 1)
            total += one.prompt_tokens
            seen.update(one.keys)
        return hit / total

    def teams(self, count: int, seed: int) -> Workload:
        """The same requests, asked by `count` teams, a few of which ask most."""
        rng = random.Random(seed)
        names = [f"team-{number}" for number in range(count)]
        shares = [1 / (1 + number) for number in range(count)]
        asked = rng.choices(names, shares, k=len(self.arrivals))
        arrivals = (one._replace(team=team) for one, team in zip(self.arrivals, asked, strict=True))
        return Workload(self.name, tuple(arrivals), self.block_tokens)


def load(name: str, trace: Path | None) -> Workload:
    """A workload by name; `conv16k` and `toolmix` are made of the chat trace at `trace`.

    Raises:
        StartError: the name is unknown, or its trace is missing or not readable.
    """
    if name in SYNTHETIC:
        return SYNTHETIC[name]()
    if trace is None:
        known = ", ".join(sorted({*SYNTHETIC, "conv", "conv16k", "servegen", "toolmix", "trace"}))
        raise StartError(f"Workload {name!r} needs --trace FILE, or is none of: {known}.")
    try:
        if name == "conv":
            return Workload(name, tuple(_chat_trace(trace, None)), TRACE_BLOCK_TOKENS)
        if name == "conv16k":
            return Workload(name, tuple(_chat_trace(trace, CONV16K_TOKENS)), TRACE_BLOCK_TOKENS)
        if name == "toolmix":
            return _toolmix(trace)
        if name == "trace":
            return _any_trace(trace)
    except (OSError, KeyError, ValueError, orjson.JSONDecodeError) as error:
        raise StartError(f"{trace} cannot be read as a trace: {error}.") from error
    raise StartError(f"There is no workload {name!r}.")


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8")
    return path.open(encoding="utf-8")


def _chat_trace(path: Path, tokens_max: int | None) -> Iterator[Arrival]:
    """Rows of `timestamp` (ms), `input_length`, `output_length`, `hash_ids`, one JSON a line."""
    rng = random.Random(1)
    with _open(path) as lines:
        rows = [orjson.loads(line) for line in lines]
    ticks = sorted({row["timestamp"] / 1e3 for row in rows})
    following = ticks[1:]
    gaps = {
        tick: min(after - tick, TICK_S_MAX) for tick, after in zip(ticks, following, strict=False)
    }
    made = []
    for number, row in enumerate(rows):
        tick = row["timestamp"] / 1e3
        made.append((tick + rng.random() * gaps.get(tick, 3.0), number, row))
    for at_s, _, row in sorted(made, key=lambda one: one[:2]):
        prompt = int(row["input_length"])
        if tokens_max is None or prompt <= tokens_max:
            yield Arrival(at_s, prompt, max(1, int(row["output_length"])), tuple(row["hash_ids"]))


def _any_trace(path: Path) -> Workload:
    """A chat trace, times and lengths (`t_s,input_tokens,output_tokens`), or a ledger export."""
    name = path.name.removesuffix(".gz")
    rows: list[dict[str, Any]]
    with _open(path) as lines:
        if name.endswith(".jsonl"):
            rows = [orjson.loads(line) for line in lines if line.strip()]
        else:
            rows = list(csv.DictReader(lines))
    if rows and "hash_ids" in rows[0]:
        return Workload(path.name, tuple(_chat_trace(path, None)), TRACE_BLOCK_TOKENS)
    if rows and "ts_us" in rows[0]:
        arrivals = sorted(_ledger_row(row) for row in rows if _was_served(row))
    else:
        arrivals = sorted(_length_row(row) for row in rows)
    if not arrivals:
        raise ValueError("it has no rows of served requests")
    return Workload(path.name, tuple(arrivals), BLOCK_TOKENS)


def _was_served(row: dict[str, Any]) -> bool:
    """Of what was refused the ledger has no length; warm-ups are no traffic."""
    return int(row["prompt_tokens"]) > 0 and row["team"] != SYSTEM_TEAM


def _length_row(row: dict[str, Any]) -> Arrival:
    prompt = max(1, int(row["input_tokens"]))
    return Arrival(float(row["t_s"]), prompt, max(1, int(row["output_tokens"])), ())


def _ledger_row(row: dict[str, Any]) -> Arrival:
    """Of what was cached nothing is known but how much: keys of the team's own, as long as that."""
    prompt = max(1, int(row["prompt_tokens"]))
    shared = int(row["cached_tokens"]) // BLOCK_TOKENS
    base = hash_of(row["team"])
    return Arrival(
        int(row["ts_us"]) / 1e6,
        prompt,
        max(1, int(row["completion_tokens"])),
        tuple(base + number for number in range(shared)),
        row["team"],
        row["priority"] == "batch",
    )


def hash_of(team: str) -> int:
    """Where a team's block numbers begin."""
    return (1 << 40) + int.from_bytes(team.encode()[:4].ljust(4, b"."), "big") * (1 << 20)


def _toolmix(path: Path, count: int = 9_000, rate: float = 6.6) -> Workload:
    """Calls with a long or a short shared tool prompt (45% and 20%), the rest real chat."""
    chat = list(_chat_trace(path, TOOLMIX_TOKENS))
    rng = random.Random(2)
    fresh, at_s, chats, arrivals = 10**7, 0.0, 0, []
    for _ in range(count):
        at_s += rng.expovariate(rate)
        kind = rng.random()
        if kind < 0.65:  # noqa: PLR2004 - the published shares
            shared, base = (12, 10**6) if kind < 0.45 else (5, 2 * 10**6)  # noqa: PLR2004
            tail = int(rng.expovariate(1 / 700)) + 20
            own = -(-tail // TRACE_BLOCK_TOKENS)
            keys = (*range(base, base + shared), *range(fresh, fresh + own))
            fresh += own
            brief = shared == 12 and rng.random() < 0.6  # noqa: PLR2004
            output = 3 if brief else rng.randint(16, 60)
            arrivals.append(Arrival(at_s, shared * TRACE_BLOCK_TOKENS + tail, output, keys))
        else:
            arrivals.append(chat[chats % len(chat)]._replace(at_s=at_s))
            chats += 1
    return Workload("toolmix", tuple(arrivals), TRACE_BLOCK_TOKENS)


def batch_line(rng: random.Random, now: float) -> Arrival:
    """One line of the batch: nothing of it is shared with any other."""
    prompt = int(rng.lognormvariate(6.5, 0.6)) + 16
    output = max(1, min(1_000, int(rng.lognormvariate(5.0, 0.7))))
    return Arrival(now, prompt, output, (), "nightly", is_batch=True)


def _seedmix(count: int = 10_000, rate: float = 40.0, teams: int = 30) -> Workload:
    """2,000 tokens in, 300 out; half of the prompts' tokens are shared by a team's requests."""
    rng = random.Random(3)
    fresh, prompts = 10**6, []
    for team in range(teams):
        for _ in range(rng.choice((1, 1, 2, 4))):
            blocks = max(2, int(rng.lognormvariate(2.5, 0.7)))
            prompts.append((team, tuple(range(fresh, fresh + blocks))))
            fresh += blocks
    shares = [rng.uniform(0.3, 1.5) / (1 + team) ** 1.1 for team, _ in prompts]
    at_s, arrivals = 0.0, []
    for _ in range(count):
        at_s += rng.gammavariate(0.5, 2.0 / rate)
        team, base = rng.choices(prompts, shares)[0]
        tail = min(16_000, int(rng.lognormvariate(6.55, 0.75)) + 16)
        own = -(-tail // BLOCK_TOKENS)
        output = max(1, min(2_000, int(rng.lognormvariate(5.4, 0.8))))
        keys = base + tuple(range(fresh, fresh + own))
        fresh += own
        prompt = len(base) * BLOCK_TOKENS + tail
        arrivals.append(Arrival(at_s, prompt, output, keys, f"team-{team}"))
    return Workload("seedmix", tuple(arrivals), BLOCK_TOKENS)


def _b2b(count: int = 6_000, rate: float = 20.0, customers: int = 150) -> Workload:
    """Customers with 6,000 tokens of context each, questions of 1,200, answers of 1,000."""
    rng = random.Random(4)
    context = 6_000 // BLOCK_TOKENS
    fresh, at_s, arrivals = 10**6, 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(rate)
        customer = rng.randrange(customers)
        tail = max(64, int(rng.gauss(1_200, 360)))
        own = -(-tail // BLOCK_TOKENS)
        keys = (*range(customer * context, (customer + 1) * context), *range(fresh, fresh + own))
        fresh += own
        output = max(16, int(rng.gauss(1_000, 300)))
        prompt = context * BLOCK_TOKENS + tail
        arrivals.append(Arrival(at_s, prompt, output, keys, f"customer-{customer}"))
    return Workload("b2b", tuple(arrivals), BLOCK_TOKENS)


def _day(sample_s: float = 60.0, peak_rate: float = 50.0, teams: int = 12) -> Workload:
    """A working day, a sample of each of its hours: quiet at night, two peaks, short bursts."""
    rng = random.Random(5)
    context = 1_024 // BLOCK_TOKENS
    fresh, arrivals = 10**6, []
    for hour, share in enumerate(_HOURS):
        at_s, ends = hour * sample_s, (hour + 1) * sample_s
        while (at_s := at_s + rng.gammavariate(0.5, 2.0 / (share * peak_rate))) < ends:
            team = min(int(rng.paretovariate(0.8)) - 1, teams - 1)
            tail = min(8_000, int(rng.lognormvariate(6.2, 0.8)) + 16)
            own = -(-tail // BLOCK_TOKENS)
            output = max(1, min(1_500, int(rng.lognormvariate(5.2, 0.8))))
            keys = (*range(team * context, (team + 1) * context), *range(fresh, fresh + own))
            fresh += own
            prompt = context * BLOCK_TOKENS + tail
            arrivals.append(Arrival(at_s, prompt, output, keys, f"team-{team}"))
    return Workload("day", tuple(arrivals), BLOCK_TOKENS)


_HOURS: Final = (
    *(0.12, 0.08, 0.06, 0.05, 0.05, 0.08, 0.2, 0.45, 0.75, 0.95, 1.0, 0.9),
    *(0.6, 0.8, 0.95, 0.9, 0.8, 0.65, 0.45, 0.35, 0.3, 0.25, 0.2, 0.15),
)
"""Of the busiest hour's requests, from midnight on."""
SYNTHETIC: Final = {"seedmix": _seedmix, "b2b": _b2b, "day": _day}
