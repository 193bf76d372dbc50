"""Requests of many teams, drawn from ServeGen's description of the clients of a real service.

`RATES` has each client's requests per second, their spread and family in windows of ten minutes;
the file of lengths beside it has the quantiles of prompts and answers in windows of six hours.
Which request comes when is drawn with a seed; a team is a client.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from inferd.capacity.workloads import BLOCK_TOKENS, Arrival, Workload
from inferd.errors import StartError

WINDOW_S: Final = 600.0
LENGTHS_S: Final = 21_600.0
REQUESTS: Final = 20_000
PROMPT_TOKENS_MAX: Final = 16_384
OUTPUT_TOKENS_MAX: Final = 4_096
_P90: Final = 1.2816  # of a standard normal distribution
_SEED: Final = 7
_MORE: Final = 1.25
"""Drawn for each that is wanted of a span: bursts make the number vary."""


class _Lengths(NamedTuple):
    prompt_p50: float
    prompt_p90: float
    output_p50: float
    output_p90: float


def servegen(
    rates: Path,
    model: str = "m-large",
    requests: int = REQUESTS,
    *,
    span_s: float | None = None,
    seed: int = _SEED,
) -> Workload:
    """The first `requests` requests of a model's clients.

    With `span_s`: so many out of all of the first `span_s` seconds, every client's rate divided by
    the same number, so that bursts stay what they are among fewer requests.

    Raises:
        StartError: a file cannot be read as what it should be.
    """
    try:
        return _drawn(rates, model, requests, span_s, random.Random(seed))
    except (OSError, KeyError, ValueError) as error:
        raise StartError(f"{rates} and the lengths beside it cannot be read: {error}.") from error


def _drawn(
    rates: Path, model: str, requests: int, span_s: float | None, rng: random.Random
) -> Workload:
    lengths = _lengths(rates.with_name(rates.name.replace("rates", "lengths")), model)
    windows: dict[float, list[dict[str, str]]] = {}
    for row in _rows(rates):
        inside = span_s is None or float(row["t_s"]) < span_s
        if row["model"] == model and row["client"] in lengths and inside:
            windows.setdefault(float(row["t_s"]), []).append(row)
    share = 1.0
    if span_s is not None:
        known = (float(row["rate_rps"]) for rows in windows.values() for row in rows)
        share = min(1.0, _MORE * requests / max(1.0, WINDOW_S * sum(known)))
    arrivals: list[Arrival] = []
    for began_s in sorted(windows):
        for row in windows[began_s]:
            arrivals += _window(row, began_s, lengths[row["client"]], share, rng)
        if span_s is None and len(arrivals) >= requests:
            break
    if not arrivals:
        raise ValueError(f"no client of {model} in it has a rate and lengths")
    if span_s is not None and len(arrivals) > requests:
        arrivals = rng.sample(arrivals, requests)
    return Workload("servegen", tuple(sorted(arrivals)[:requests]), BLOCK_TOKENS)


def _window(
    row: dict[str, str],
    began_s: float,
    lengths: dict[int, _Lengths],
    share: float,
    rng: random.Random,
) -> Iterator[Arrival]:
    rate, cv = float(row["rate_rps"]) * share, max(0.05, float(row["cv"]))
    if rate <= 0:
        return
    near = min(lengths, key=lambda window: abs(window - int(began_s // LENGTHS_S)))
    drawn = lengths[near]
    # A gamma distribution has any mean and spread; bursts are what the spread above 1 is.
    shape = 1 / (cv * cv)
    at_s = began_s + rng.random() / rate
    while at_s < began_s + WINDOW_S:
        prompt = _length(drawn.prompt_p50, drawn.prompt_p90, PROMPT_TOKENS_MAX, rng)
        output = _length(drawn.output_p50, drawn.output_p90, OUTPUT_TOKENS_MAX, rng)
        yield Arrival(at_s, prompt, output, (), f"client-{row['client']}")
        at_s += rng.gammavariate(shape, 1 / (rate * shape))


def _length(p50: float, p90: float, most: int, rng: random.Random) -> int:
    """Log-normal through both quantiles."""
    spread = math.log(max(p90, p50 + 1) / max(p50, 1)) / _P90
    return max(1, min(most, int(rng.lognormvariate(math.log(max(p50, 1)), spread))))


def _lengths(path: Path, model: str) -> dict[str, dict[int, _Lengths]]:
    found: dict[str, dict[int, _Lengths]] = {}
    for row in _rows(path):
        if row["model"] == model:
            names = ("in_p50", "in_p90", "out_p50", "out_p90")
            window = int(float(row["t_s"]) // LENGTHS_S)
            found.setdefault(row["client"], {})[window] = _Lengths(*(float(row[n]) for n in names))
    return found


def _rows(path: Path) -> list[dict[str, str]]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    return list(csv.DictReader(io.StringIO(text)))
