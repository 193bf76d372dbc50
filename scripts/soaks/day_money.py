"""What a day should cost, worked out anew from inferd.toml and tokens, in exact fractions.

Nothing of inferd is used here: this is the other side of the comparison.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, Final

MILLION: Final = 1_000_000
PICO: Final = 10**12

Price = tuple[Fraction, Fraction, Fraction]
"""Of one computed prompt token, one cached one, one written."""


def prices(config: str) -> dict[tuple[str, str], Price]:
    """By pool and priority, as docs/billing.md and docs/config.md say."""
    found = {}
    for model in tomllib.loads(config, parse_float=Fraction)["models"]:
        for version in model["versions"]:
            told: Mapping[str, Fraction | int] = version.get("prices", {})
            pool = f"{model['name']}@{version['version']}"
            computed = Fraction(told.get("input", 0))
            cached = Fraction(told.get("cached_input", computed))
            output = Fraction(told.get("output", 0))
            found[pool, "interactive"] = _each(computed, cached, output)
            in_batch = Fraction(told.get("batch_input", computed))
            cached_in_batch = told.get("batch_cached_input", min(cached, in_batch))
            out_batch = told.get("batch_output", output)
            found[pool, "batch"] = _each(in_batch, Fraction(cached_in_batch), Fraction(out_batch))
    return found


def owed(price: Price, row: Mapping[str, Any]) -> Fraction:
    """Of one request. A cached prompt token is paid as such, and never as a computed one too."""
    computed, cached, output = price
    fresh = row["prompt_tokens"] - row["cached_tokens"]
    reused, written = row["cached_tokens"], row["completion_tokens"]
    return Fraction(fresh * computed + reused * cached + written * output)


def owed_by_team(
    config: str, rows: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Fraction], list[str]]:
    """Each team's sum; the rows whose `cost_pico` is another than that."""
    known = prices(config)
    sums: dict[str, Fraction] = {}
    wrong = []
    for row in rows:
        mine = row["team"] == "system"  # warm-ups: the service's own, for which nobody pays
        amount = Fraction() if mine else owed(known[row["pool"], row["priority"]], row)
        sums[row["team"]] = sums.get(row["team"], Fraction()) + amount
        if amount != Fraction(row["cost_pico"], PICO):
            wrong.append(
                f"{row['request_id']} costs {row['cost_pico']} pico, and should {amount * PICO}"
            )
    return sums, wrong


def _each(computed: Fraction, cached: Fraction, output: Fraction) -> Price:
    return computed / MILLION, cached / MILLION, output / MILLION
