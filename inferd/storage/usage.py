"""The ledger: one row per request, inserted exactly once, and its sums.

Rows are posted: a crash may lose the last flush (some 25 ms), never more. A second row for the same
request is refused, logged and counted as lost, so that no request is ever billed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from operator import attrgetter
from typing import Any, Literal, get_args

from inferd.errors import StorageError
from inferd.storage.database import Cursor, Database, Row
from inferd.storage.rollup import Readable

Dimension = Literal["team", "key_id", "model", "version", "pool", "worker", "priority", "outcome"]
ROWS_MAX = 1_000
"""Longest list of single rows that one call returns."""


@dataclass(slots=True, kw_only=True)  # made for every request: frozen it would take twice as long
class UsageRow:
    """A settled request, never changed; `ts_us` is its arrival, `attempts` counts placements.

    `response_id`, `worker` and `placement_reason` are None if it was never placed.
    """

    request_id: str
    response_id: str | None
    ts_us: int
    team: str
    key_id: str
    model: str
    version: str
    pool: str
    worker: str | None
    priority: str
    endpoint: str
    stream: bool
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    estimated: bool
    queue_wait_s: float
    ttft_s: float | None
    tpot_s: float | None
    duration_s: float
    placement_reason: str | None
    attempts: int
    outcome: str
    error_code: str | None
    predicted_ttft_s: float | None = None
    """From its placement; `ttft_s` counts from its arrival."""
    hit_tokens: int | None = None
    """Prompt tokens that the worker was thought to hold."""
    fair_tag: float | None = None
    candidates: int | None = None
    """Workers it was chosen from."""
    cost_pico: int = 0
    """At the prices of its settlement, in 1e-12 of the currency."""
    choices: int = 1
    prefill_worker: str | None = None
    """Who computed the prompt, in a split pool; `worker` then made the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFilter:
    """Which rows count. `since_us` is included, `until_us` is not; None means no bound."""

    since_us: int | None = None
    until_us: int | None = None
    team: str | None = None
    model: str | None = None
    key_id: str | None = None


_EVERYTHING = UsageFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSum:
    """Totals of one group; `group` holds the values of the dimensions asked for, in order."""

    group: tuple[str | None, ...]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    estimated_requests: int


COLUMNS = tuple(field.name for field in fields(UsageRow))
_COLUMN_LIST = ", ".join(COLUMNS)
_values = attrgetter(*COLUMNS)

_INSERT = f"""
INSERT INTO requests ({_COLUMN_LIST}) VALUES ({", ".join("?" * len(COLUMNS))})
ON CONFLICT (request_id) DO NOTHING
"""  # noqa: S608 - made of field names

_CONDITIONS = {
    "since_us": "ts_us >= :since_us",
    "until_us": "ts_us < :until_us",
    "team": "team = :team",
    "model": "model = :model",
    "key_id": "key_id = :key_id",
}

_TOTALS = """
count(*), coalesce(sum(prompt_tokens), 0), coalesce(sum(cached_tokens), 0),
coalesce(sum(completion_tokens), 0), coalesce(sum(reasoning_tokens), 0),
coalesce(sum(estimated), 0)
"""


def record(db: Database, row: UsageRow) -> bool:
    """Post the row of a settled request. False: the writer's queue is full and the row is lost."""
    return db.post(partial(insert, row))


async def sums(
    db: Database, where: UsageFilter = _EVERYTHING, by: Sequence[Dimension] = ("team", "model")
) -> list[UsageSum]:
    """Totals per group, ordered by group; without dimensions one sum, of zeros if nothing matches.

    Reads what is committed: `await db.flush()` before it to include every row posted so far.
    """
    unknown = set(by) - set(get_args(Dimension))
    assert not unknown, f"not a dimension of the ledger: {unknown}"
    names = ", ".join(by)
    columns = f"{names}, {_TOTALS}" if by else _TOTALS
    group = f"GROUP BY {names} ORDER BY {names}" if by else ""
    condition, parameters = _where(where)
    found = await db.read(
        f"SELECT {columns} FROM requests {condition} {group}",  # noqa: S608 - checked names
        parameters,
    )
    return [_sum(tuple(row), len(by)) for row in found]


async def rows(db: Database, where: UsageFilter = _EVERYTHING, limit: int = 100) -> list[UsageRow]:
    """The newest rows that match, newest first; at most `ROWS_MAX`."""
    condition, parameters = _where(where)
    found = await db.read(
        f"SELECT {_COLUMN_LIST} FROM requests {condition} "  # noqa: S608 - made of field names
        "ORDER BY ts_us DESC, rowid DESC LIMIT :limit",
        parameters | {"limit": min(limit, ROWS_MAX)},
    )
    return [_row(row) for row in found]


async def find(db: Readable, request_id: str) -> UsageRow | None:
    """The row of a request, by its own id or its response's."""
    for column in ("request_id", "response_id"):
        found = await db.read(
            f"SELECT {_COLUMN_LIST} FROM requests WHERE {column} = ?",  # noqa: S608 - names
            (request_id,),
        )
        if found:
            return _row(found[0])
    return None


def export_query(where: UsageFilter) -> tuple[str, dict[str, Any]]:
    """A SELECT of the rows that match, oldest first, in the columns of `COLUMNS`."""
    condition, parameters = _where(where)
    return (
        f"SELECT {_COLUMN_LIST} FROM requests {condition} ORDER BY ts_us, rowid",  # noqa: S608
        parameters,
    )


def insert(row: UsageRow, cursor: Cursor) -> None:
    """Write a row in a transaction of the caller's. Raises StorageError if it is there already."""
    cursor.execute(_INSERT, _values(row))
    if cursor.rowcount != 1:
        raise StorageError(f"Request {row.request_id} is in the ledger already: settled twice.")


def _where(where: UsageFilter) -> tuple[str, dict[str, Any]]:
    """Only the conditions that are asked for, so that SQLite can use its indexes."""
    parameters = {name: getattr(where, name) for name in _CONDITIONS}
    given = {name: value for name, value in parameters.items() if value is not None}
    conditions = " AND ".join(_CONDITIONS[name] for name in given)
    return (f"WHERE {conditions}" if given else ""), given


def _row(row: Row) -> UsageRow:
    columns = dict(row)
    columns["stream"] = bool(columns["stream"])
    columns["estimated"] = bool(columns["estimated"])
    return UsageRow(**columns)


def _sum(values: tuple[Any, ...], dimensions: int) -> UsageSum:
    requests, prompt, cached, completion, reasoning, estimated = values[dimensions:]
    return UsageSum(
        group=values[:dimensions],
        requests=requests,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
        reasoning_tokens=reasoning,
        estimated_requests=estimated,
    )
