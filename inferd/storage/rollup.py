"""The ledger's sums by the hour: kept by a service, read together with the rows not yet in them.

A row is summed once: those after the mark (`rolled_up`) are read from the ledger itself, in the
same statement. The service works in small transactions, for settled rows wait behind them; it also
deletes what is older than the ledger keeps, never the marked row, from where the next sums begin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol, get_args

from inferd.clock import monotonic, utc_now_us
from inferd.errors import StorageError
from inferd.storage.database import Cursor, Database, Row

_log = logging.getLogger(__name__)

HourDimension = Literal["team", "key_id", "model", "version", "priority", "outcome", "hour", "day"]
HOUR_US: Final = 3_600_000_000
DAY_HOURS: Final = 24
ROWS_A_ROUND: Final = 2_000
ROUND_EVERY_S: Final = 5.0
ROUND_PAUSE_S: Final = 0.01
"""Between rounds of one catching up: settled rows go first."""
DELETE_EVERY_S: Final = 3_600.0
DELETED_AT_ONCE: Final = 500
DELETE_PAUSE_S: Final = 0.1

_SUMMED: Final = (
    *("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"),
    *("estimated_requests", "cost_pico"),
)
_KEYS: Final = "hour, team, key_id, model, version, priority, outcome"
_ROW: Final = f"""ts_us / {HOUR_US} AS hour, team, key_id, model, version, priority, outcome,
1 AS requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens,
estimated AS estimated_requests, cost_pico"""
_MARK: Final = """coalesce(
(SELECT rowid FROM requests WHERE request_id = (SELECT request_id FROM rolled_up)), 0)"""
_ROLL: Final = f"""
INSERT INTO usage_hours ({_KEYS}, {", ".join(_SUMMED)})
SELECT {_KEYS}, {", ".join(f"sum({name})" for name in _SUMMED)}
FROM (SELECT {_ROW} FROM requests WHERE rowid > :mark AND rowid <= :top)
WHERE true GROUP BY {_KEYS}
ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMMED)}
"""  # noqa: S608 - made of column names
TIMES: Final = {
    "hour": f"hour * {HOUR_US}",
    "day": f"hour / {DAY_HOURS} * {DAY_HOURS * HOUR_US}",
}
"""Of a row of hours: the begin of its hour and of its day, microseconds UTC."""
# The sum of many amounts may be larger than SQLite's integers: in two parts it is not.
_TOTALS: Final = ", ".join(f"sum({name})" for name in _SUMMED[:-1]) + (
    ", sum(cost_pico / 1000000), sum(cost_pico % 1000000)"
)


class Readable(Protocol):
    """A database as a reader sees it."""

    async def read(
        self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()
    ) -> list[Row]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HourFilter:
    """Which hours count: those that begin in `since_us` and before `until_us`; None: no bound."""

    since_us: int | None = None
    until_us: int | None = None
    team: str | None = None
    key_id: str | None = None
    model: str | None = None
    version: str | None = None
    priority: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HourSum:
    """Totals of one group; `group` has what was asked for, in order: times in microseconds UTC."""

    group: tuple[str | int, ...]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    estimated_requests: int
    cost_pico: int


async def sums(
    db: Readable, where: HourFilter | None = None, by: Sequence[HourDimension] = ("team",)
) -> list[HourSum]:
    """Totals per group in the order of the groups; without dimensions one, if anything matches."""
    unknown = set(by) - set(get_args(HourDimension))
    assert not unknown, f"not a dimension of the sums: {unknown}"
    conditions, parameters = _conditions(where or HourFilter())
    names = [f"{TIMES.get(name, name)} AS {name}_" for name in by]
    grouped = ", ".join(f"{name}_" for name in by)
    found = await db.read(
        f"SELECT {', '.join([*names, _TOTALS])} FROM ("  # noqa: S608 - checked names
        f"SELECT {_KEYS}, {', '.join(_SUMMED)} FROM usage_hours WHERE {conditions} "
        f"UNION ALL SELECT * FROM (SELECT {_ROW} FROM requests NOT INDEXED WHERE rowid > {_MARK}) "
        f"WHERE {conditions})" + (f" GROUP BY {grouped} ORDER BY {grouped}" if by else ""),
        parameters,
    )
    return [_sum(tuple(row), len(by)) for row in found if row[len(by)] is not None]


async def spent_since(db: Readable, since_us: int) -> list[tuple[str, int, int]]:
    """Team, tokens and cost_pico of each team, from an hour on."""
    found = await sums(db, HourFilter(since_us=since_us), ("team",))
    return [
        (str(one.group[0]), one.prompt_tokens + one.completion_tokens, one.cost_pico)
        for one in found
    ]


async def roll_up(db: Database) -> int:
    """Sum the next rows, at most `ROWS_A_ROUND`; how many they were."""
    return await db.write(_roll)


async def delete_before(db: Database, ts_us: int) -> int:
    """Delete some of the rows that arrived earlier and are in the sums; how many they were."""
    return await db.write(partial(_delete, ts_us))


async def keep(db: Database, rows_kept_days: Callable[[], int]) -> None:
    """The service: sum what has come, delete what is too old. Ends by cancellation."""
    delete_at = monotonic()
    while True:
        pause_s = ROUND_EVERY_S
        try:
            if await roll_up(db) == ROWS_A_ROUND:
                pause_s = ROUND_PAUSE_S
            elif monotonic() >= delete_at:
                before_us = utc_now_us() - rows_kept_days() * DAY_HOURS * HOUR_US
                if await delete_before(db, before_us):
                    pause_s = DELETE_PAUSE_S
                else:
                    delete_at = monotonic() + DELETE_EVERY_S
        except StorageError as error:  # the writer itself decides when that is too much
            _log.warning("the ledger's sums have to wait: %s", error)
        await asyncio.sleep(pause_s)


def _roll(cursor: Cursor) -> int:
    (mark,) = cursor.execute(f"SELECT {_MARK}").fetchone()
    after = "SELECT rowid FROM requests WHERE rowid > ? ORDER BY rowid LIMIT ?"
    top, count = cursor.execute(
        f"SELECT max(rowid), count(*) FROM ({after})",  # noqa: S608 - a constant
        (mark, ROWS_A_ROUND),
    ).fetchone()
    if count:
        cursor.execute(_ROLL, {"mark": mark, "top": top})
        cursor.execute(
            "INSERT INTO rolled_up SELECT 1, request_id FROM requests WHERE rowid = ? "
            "ON CONFLICT DO UPDATE SET request_id = excluded.request_id",
            (top,),
        )
    return int(count)


def _delete(ts_us: int, cursor: Cursor) -> int:
    chosen = f"SELECT rowid FROM requests WHERE ts_us < ? AND rowid < {_MARK} LIMIT ?"  # noqa: S608
    cursor.execute(
        f"DELETE FROM requests WHERE rowid IN ({chosen})",  # noqa: S608 - a constant
        (ts_us, DELETED_AT_ONCE),
    )
    deleted = cursor.rowcount
    cursor.execute(
        "DELETE FROM unbilled_attempts WHERE rowid IN "
        "(SELECT rowid FROM unbilled_attempts WHERE ts_us < ? LIMIT ?)",
        (ts_us, DELETED_AT_ONCE),
    )
    return deleted + cursor.rowcount


def _conditions(where: HourFilter) -> tuple[str, dict[str, Any]]:
    """Begin and end are whole hours: the one that `since_us` is in, those before `until_us`."""
    parameters: dict[str, Any] = {
        name: value
        for name in ("team", "key_id", "model", "version", "priority")
        if (value := getattr(where, name)) is not None
    }
    conditions = [f"{name} = :{name}" for name in parameters]
    within, hours = hours_between(where.since_us, where.until_us)
    return " AND ".join([within, *conditions]), parameters | hours


def hours_between(since_us: int | None, until_us: int | None) -> tuple[str, dict[str, Any]]:
    """A condition on `hour`, and its parameters: from the one that `since_us` is in."""
    conditions, parameters = ["true"], dict[str, Any]()
    if since_us is not None:
        conditions.append("hour >= :since_hour")
        parameters["since_hour"] = since_us // HOUR_US
    if until_us is not None:
        conditions.append("hour < :until_hour")
        parameters["until_hour"] = -(-until_us // HOUR_US)
    return " AND ".join(conditions), parameters


def _sum(values: tuple[Any, ...], dimensions: int) -> HourSum:
    totals = values[dimensions:]
    millions, rest = totals[-2:]
    return HourSum(
        group=values[:dimensions],
        **dict(zip(_SUMMED[:-1], totals, strict=False)),
        cost_pico=millions * 1_000_000 + rest,
    )
