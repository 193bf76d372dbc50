"""What an admin asks of the bill: usage, one request's life, who did what. No HTTP here.

The same functions answer the admin API and the commands that read the database themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, get_args

from inferd.api.capacity_view import capacity_of
from inferd.errors import InvalidField, NotFound
from inferd.quota.prices import amount_text
from inferd.storage import unbilled, usage
from inferd.storage.audit import Action
from inferd.storage.rollup import HOUR_US, HourDimension, HourFilter, Readable, sums

DIMENSIONS: Final[tuple[str, ...]] = get_args(HourDimension)
_TIMES: Final = ("hour", "day")

Answer = dict[str, Any]


async def usage_of(
    db: Readable, where: HourFilter, by: Sequence[HourDimension], currency: str
) -> Answer:
    """Sums by group and over all of them; amounts exact, as text and in 1e-12 of the currency."""
    groups = []
    found = await sums(db, where, by)
    for one in found:
        named: Answer = dict(zip(by, one.group, strict=True))
        for name in _TIMES:
            if name in named:
                named[name] = named[name] // 1_000_000
        groups.append(named | _totals(asdict(one)))
    return {
        "object": "usage",
        "by": list(by),
        "since": None if where.since_us is None else where.since_us // HOUR_US * 3_600,
        "until": None if where.until_us is None else -(-where.until_us // HOUR_US) * 3_600,
        "currency": currency,
        "groups": groups,
        "total": _whole([asdict(one) for one in found]) if found else None,
        "capacity": await capacity_of(db, where, by),
    }


def dimensions(text: str) -> list[HourDimension]:
    """`team,model` as dimensions. Raises InvalidField."""
    by = [name.strip() for name in text.split(",") if name.strip()]
    known = {"key": "key_id", **{name: name for name in DIMENSIONS}}
    for name in by:
        if name not in known:
            raise InvalidField(
                f"Invalid 'by': nothing is summed by '{name}'. There are: "
                f"{', '.join(name for name in known if name != 'key_id')}.",
                param="by",
            )
    found: list[Any] = [known[name] for name in by]
    return found


async def life_of(db: Readable, request_id: str) -> Answer:
    """The ledger's row of one request, by its id or its response's. Raises NotFound."""
    row = await usage.find(db, request_id)
    if row is None:
        raise NotFound(
            f"No request '{request_id[:80]}' in the ledger: rows are kept for"
            " billing.rows_kept_days, and what was refused before it was understood (no key, a"
            " wrong body) has none."
        )
    attempts = await unbilled.of_request(db, row.request_id)
    return {
        "object": "request",
        **asdict(row),
        "cost": amount_text(row.cost_pico),
        "unbilled": [asdict(attempt) for attempt in attempts],
    }


def action_answer(action: Action) -> Answer:
    return {"object": "action", **asdict(action)}


def _whole(groups: list[Answer]) -> Answer:
    names = [name for name in groups[0] if name != "group"]
    whole = {name: sum(group[name] for group in groups) for name in names}
    return _totals({"group": (), **whole})


def _totals(sums: Answer) -> Answer:
    del sums["group"]
    return {**sums, "cost": amount_text(sums["cost_pico"])}
