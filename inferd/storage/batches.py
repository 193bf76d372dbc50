"""Rows of batches and of their lines that are done. `batch.runner.Runner` is the only writer.

A line's result, its row in the ledger and the counts of its batch are one transaction. Everything
here is awaited, so it outlives a power cut once it has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final

import orjson

from inferd.inference import Usage
from inferd.storage.database import Cursor, Database, Row
from inferd.storage.usage import UsageRow, insert

UNFINISHED: Final = ("validating", "in_progress", "finalizing", "cancelling")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One batch. `ending` is how it will end, from when that is decided; times in microseconds."""

    id: str
    team: str
    key_id: str
    endpoint: str
    model: str | None = None
    """As its lines name it; None until they were read."""
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_s: int | None = None
    status: str
    ending: str | None = None
    errors: list[dict[str, Any]] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_us: int
    expires_us: int
    in_progress_us: int | None = None
    finalizing_us: int | None = None
    completed_us: int | None = None
    failed_us: int | None = None
    expired_us: int | None = None
    cancelling_us: int | None = None
    cancelled_us: int | None = None
    input_bytes: int = 0
    prompt_tokens_estimated: int = 0
    output_tokens_estimated: int = 0
    """Of all its lines: by their bytes, and by how long answers are."""
    estimated_end_us: int | None = None
    """When it should be done, as last thought."""
    total: int = 0
    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cost_pico: int = 0
    """Of all its lines that are done, in 1e-12 of the currency."""
    output_bytes: int = 0
    error_bytes: int = 0

    @property
    def tokens_estimated(self) -> int:
        return self.prompt_tokens_estimated + self.output_tokens_estimated

    @property
    def is_finished(self) -> bool:
        return self.status not in UNFINISHED

    @property
    def usage(self) -> Usage:
        """Of all its lines that are done."""
        return Usage(
            self.prompt_tokens, self.cached_tokens, self.completion_tokens, self.reasoning_tokens
        )


@dataclass(frozen=True, slots=True)
class LineDone:
    """A line whose result is in a spool, up to `spool_end`. `usage_row`: None if it never ran."""

    line: int
    failed: bool
    spool_end: int
    usage_row: UsageRow | None


_COLUMNS: Final = tuple(field.name for field in fields(BatchRow))
_JSON: Final = frozenset({"metadata", "errors"})
_KEPT: Final = tuple(
    name
    for name in _COLUMNS
    if name.endswith("_us")
    or name
    in {
        *("status", "ending", "errors", "model", "total", "input_bytes"),
        *("prompt_tokens_estimated", "output_tokens_estimated"),
    }
)
"""What `update` writes; counts belong to the lines."""
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM batches"  # noqa: S608 - field names
_INSERT: Final = (
    f"INSERT INTO batches ({', '.join(_COLUMNS)}) "  # noqa: S608 - field names
    f"VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"
)
_UPDATE: Final = (
    f"UPDATE batches SET {', '.join(f'{name} = :{name}' for name in _KEPT)} "  # noqa: S608
    "WHERE id = :id"
)
_INSERT_LINE: Final = """
INSERT INTO batch_lines (batch_id, line, failed, spool_end, request_id) VALUES (?, ?, ?, ?, ?)
"""
_COUNT: Final = """
UPDATE batches SET
    completed = completed + :completed, failed = failed + :failed,
    prompt_tokens = prompt_tokens + :prompt_tokens, cached_tokens = cached_tokens + :cached_tokens,
    completion_tokens = completion_tokens + :completion_tokens,
    reasoning_tokens = reasoning_tokens + :reasoning_tokens, cost_pico = cost_pico + :cost_pico,
    output_bytes = :output_bytes, error_bytes = :error_bytes
WHERE id = :id
"""
_COUNT_AGAIN: Final = """
UPDATE batches SET
    (completed, failed) = (
        SELECT coalesce(sum(1 - failed), 0), coalesce(sum(failed), 0)
        FROM batch_lines WHERE batch_id = :id
    ),
    (prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost_pico) = (
        SELECT coalesce(sum(r.prompt_tokens), 0), coalesce(sum(r.cached_tokens), 0),
               coalesce(sum(r.completion_tokens), 0), coalesce(sum(r.reasoning_tokens), 0),
               coalesce(sum(r.cost_pico), 0)
        FROM batch_lines JOIN requests AS r USING (request_id) WHERE batch_id = :id
    ),
    output_bytes = coalesce(
        (SELECT max(spool_end) FROM batch_lines WHERE batch_id = :id AND NOT failed), 0
    ),
    error_bytes = coalesce(
        (SELECT max(spool_end) FROM batch_lines WHERE batch_id = :id AND failed), 0
    )
WHERE id = :id
"""
_SUMMED: Final = (
    *("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cost_pico"),
)
_summed: Final = attrgetter(*_SUMMED)
_BILLED: Final = f"SELECT {', '.join(_SUMMED)} FROM requests WHERE request_id = ?"  # noqa: S608 - field names


async def add(
    db: Database,
    row: BatchRow,
    before: Callable[[Cursor], object],
    committed: Callable[[BatchRow], None],
) -> BatchRow:
    """Store a new batch unless `before` raises, in the same transaction; see `Database.write`."""

    def write(cursor: Cursor) -> BatchRow:
        before(cursor)
        cursor.execute(_INSERT, _values(row))
        return row

    return await db.write(write, committed)


async def update(db: Database, row: BatchRow) -> None:
    """Store what is not counted by lines."""
    values = _values(row)
    await db.write(lambda cursor: cursor.execute(_UPDATE, values).rowcount)


async def get(db: Database, team: str, batch_id: str) -> BatchRow | None:
    """None too for another team's."""
    found = await db.read(f"{_SELECT} WHERE id = ? AND team = ?", (batch_id, team))
    return _row(found[0]) if found else None


async def newest(db: Database, team: str, after: str | None, limit: int) -> list[BatchRow]:
    """A team's batches, newest first, behind `after`; ties in time by id."""
    condition, parameters = "", {"team": team, "limit": limit, "after": after}
    if after is not None:
        condition = (
            "AND (created_us, id) < (SELECT created_us, id FROM batches"
            " WHERE id = :after AND team = :team)"
        )
    found = await db.read(
        f"{_SELECT} WHERE team = :team {condition} ORDER BY created_us DESC, id DESC LIMIT :limit",
        parameters,
    )
    return [_row(row) for row in found]


async def find(db: Database, batch_id: str) -> BatchRow | None:
    """Whosever it is: for admins."""
    found = await db.read(f"{_SELECT} WHERE id = ?", (batch_id,))
    return _row(found[0]) if found else None


async def newest_of_all(db: Database, limit: int) -> list[BatchRow]:
    """Of all teams, newest first: for admins."""
    found = await db.read(f"{_SELECT} ORDER BY created_us DESC, id DESC LIMIT ?", (limit,))
    return [_row(row) for row in found]


async def unfinished(db: Database) -> list[BatchRow]:
    """Of all teams, oldest first."""
    marks = ", ".join("?" * len(UNFINISHED))
    found = await db.read(
        f"{_SELECT} WHERE status IN ({marks}) ORDER BY created_us, id", UNFINISHED
    )
    return [_row(row) for row in found]


async def lines_done(db: Database, batch_id: str) -> list[tuple[int, bool, int]]:
    """Line, whether it failed, and where its result ends in its spool."""
    found = await db.read(
        "SELECT line, failed, spool_end FROM batch_lines WHERE batch_id = ?", (batch_id,)
    )
    return [(row["line"], bool(row["failed"]), row["spool_end"]) for row in found]


async def record_lines(
    db: Database, batch_id: str, lines: Sequence[LineDone], output_bytes: int, error_bytes: int
) -> BatchRow:
    """The checkpoint: lines, their ledger rows, the batch's counts and what of its spools counts.

    All of it or nothing. Raises StorageError.
    """
    failed = sum(line.failed for line in lines)
    counts: dict[str, object] = {
        "id": batch_id,
        "completed": len(lines) - failed,
        "failed": failed,
        "output_bytes": output_bytes,
        "error_bytes": error_bytes,
    }

    def write(cursor: Cursor) -> BatchRow:
        bills = [_bill(line.usage_row, cursor) for line in lines if line.usage_row is not None]
        sums = [sum(column) for column in zip(*bills, strict=True)] or [0] * len(_SUMMED)
        cursor.executemany(_INSERT_LINE, [_line(batch_id, line) for line in lines])
        cursor.execute(_COUNT, counts | dict(zip(_SUMMED, sums, strict=True)))
        return _select(cursor, batch_id)

    return await db.write(write)


def _bill(row: UsageRow, cursor: Cursor) -> tuple[int, ...]:
    """Write a line's row, and what it counts for: the one that is there, if it was billed before.

    It was if a disk has lost its synced result: the line ran again, and is billed as the first
    time, for hours that are summed are never changed.
    """
    cursor.execute(_BILLED, (row.request_id,))
    if (billed := cursor.fetchone()) is not None:
        return tuple(billed)
    insert(row, cursor)
    return _summed(row)


def name_file(cursor: Cursor, batch_id: str, kind: str, file_id: str) -> None:
    """In somebody else's transaction: the batch's `output` or `error` file is this one."""
    assert kind in {"output", "error"}, kind
    cursor.execute(
        f"UPDATE batches SET {kind}_file_id = ? WHERE id = ?",  # noqa: S608 - one of two
        (file_id, batch_id),
    )


async def forget_lines(db: Database, batch_id: str, lines: Iterable[int]) -> BatchRow:
    """Lines whose results are lost are not done. Their rows stay in the ledger: see `_bill`."""
    lost = [(batch_id, line) for line in lines]

    def write(cursor: Cursor) -> BatchRow:
        cursor.executemany("DELETE FROM batch_lines WHERE batch_id = ? AND line = ?", lost)
        cursor.execute(_COUNT_AGAIN, {"id": batch_id})
        return _select(cursor, batch_id)

    return await db.write(write)


async def finish(db: Database, row: BatchRow) -> BatchRow:
    """Store the end of a batch; which lines are done is of no use any more."""
    values = _values(row)

    def write(cursor: Cursor) -> BatchRow:
        cursor.execute(_UPDATE, values)
        cursor.execute("DELETE FROM batch_lines WHERE batch_id = ?", (row.id,))
        return _select(cursor, row.id)

    return await db.write(write)


def _line(batch_id: str, line: LineDone) -> tuple[object, ...]:
    request_id = line.usage_row.request_id if line.usage_row is not None else None
    return (batch_id, line.line, line.failed, line.spool_end, request_id)


def _select(cursor: Cursor, batch_id: str) -> BatchRow:
    cursor.execute(f"{_SELECT} WHERE id = ?", (batch_id,))
    return _row(cursor.fetchone())


def _values(row: BatchRow) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(row, name) for name in _COLUMNS}
    for name in _JSON:
        if values[name] is not None:
            values[name] = orjson.dumps(values[name]).decode()
    return values


def _row(row: Row) -> BatchRow:
    values = dict(row)
    for name in _JSON:
        if values[name] is not None:
            values[name] = orjson.loads(values[name])
    return BatchRow(**values)
