"""What each pool's slots were used for, by the hour: added to by a service, read by admins.

Sums of whole microseconds, one row a pool and hour, deleted after `KEPT_DAYS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, Final, Literal, get_args

from inferd.storage.database import Cursor, Database
from inferd.storage.rollup import DAY_HOURS, HOUR_US, TIMES, Readable, hours_between

CapacityDimension = Literal["pool", "hour", "day"]
KEPT_DAYS: Final = 1_096
"""Three years: 24 rows a pool and day."""
SUMS: Final = ("slot_us", "interactive_us", "batch_us", "worker_us", "busy_us")
COLUMNS: Final = ("ts_us", "pool", *SUMS)
"""Of an export: the begin of the hour, microseconds UTC as everywhere in the ledger."""
_COLUMNS: Final = f"hour, pool, {', '.join(SUMS)}"
_ADD: Final = f"""
INSERT INTO capacity_hours ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in SUMS)}
"""  # noqa: S608 - made of column names
_GROUPS: Final = {"pool": "pool", **TIMES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Of one pool in one hour, or of a group of those; times in microseconds."""

    slot_us: int
    interactive_us: int
    batch_us: int
    worker_us: int
    busy_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFilter:
    """Hours that begin in `since_us` and before `until_us`, as the ledger's sums count them."""

    since_us: int | None = None
    until_us: int | None = None
    model: str | None = None
    version: str | None = None


def add(db: Database, at_us: int, used: Iterable[tuple[str, Capacity]]) -> bool:
    """Post what was used by each pool, in the hour of `at_us`."""
    rows = [(at_us // HOUR_US, pool, *astuple(capacity)) for pool, capacity in used]
    return db.post(partial(_add, rows)) if rows else True


async def sums(
    db: Readable, where: CapacityFilter, by: Sequence[CapacityDimension] = ("pool",)
) -> list[tuple[tuple[str | int, ...], Capacity]]:
    """Totals by group, in the order of the groups; times of groups in microseconds UTC."""
    unknown = set(by) - set(get_args(CapacityDimension))
    assert by and not unknown, f"not a dimension of capacity: {unknown}"  # noqa: PT018 - no test
    condition, parameters = _conditions(where)
    names = ", ".join(f"{_GROUPS[name]} AS {name}_" for name in by)
    grouped = ", ".join(f"{name}_" for name in by)
    totals = ", ".join(f"sum({name})" for name in SUMS)
    found = await db.read(
        f"SELECT {names}, {totals} FROM capacity_hours WHERE {condition} "  # noqa: S608 - names
        f"GROUP BY {grouped} ORDER BY {grouped}",
        parameters,
    )
    return [
        (tuple(row)[: len(by)], Capacity(**dict(zip(SUMS, tuple(row)[len(by) :], strict=True))))
        for row in found
    ]


def hours_query(where: CapacityFilter) -> tuple[str, dict[str, Any]]:
    """A SELECT of the rows that match, oldest first, in the columns of `COLUMNS`."""
    condition, parameters = _conditions(where)
    names = f"hour * {HOUR_US} AS ts_us, pool, {', '.join(SUMS)}"
    sql = f"SELECT {names} FROM capacity_hours WHERE {condition} ORDER BY hour, pool"  # noqa: S608
    return sql, parameters


def _conditions(where: CapacityFilter) -> tuple[str, dict[str, Any]]:
    within, parameters = hours_between(where.since_us, where.until_us)
    conditions = [within]
    if where.model is not None:  # a pool is model@version, or that and /decode
        conditions.append("substr(pool, 1, instr(pool, '@') - 1) = :model")
        parameters["model"] = where.model
    if where.version is not None:
        conditions.append("replace(substr(pool, instr(pool, '@') + 1), '/decode', '') = :version")
        parameters["version"] = where.version
    return " AND ".join(conditions), parameters


def _add(rows: list[tuple[Any, ...]], cursor: Cursor) -> None:
    cursor.executemany(_ADD, rows)
    (hour, *_) = rows[0]
    cursor.execute("DELETE FROM capacity_hours WHERE hour < ?", (hour - KEPT_DAYS * DAY_HOURS,))
