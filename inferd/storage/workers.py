"""Which engines were started, so that the next inferd can take them over or end them.

A row is written before its process exists. It survives a crash of inferd as soon as it is
committed; that a crash of the machine may lose it does not matter, for no engine outlives that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial

from inferd.storage.database import Cursor, Database, Row

_PUT = """
INSERT INTO workers (mark, worker, boot_id, pid, start_ticks, port, api_key, spec_hash,
    program_hash, devices, was_ready, started_us)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (mark) DO UPDATE SET pid = excluded.pid, start_ticks = excluded.start_ticks,
    was_ready = excluded.was_ready
"""


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """One engine's life. `pid` and `start_ticks` are None while it is about to be started."""

    mark: str
    worker_id: str
    boot_id: str
    port: int
    api_key: str = field(repr=False)
    spec_hash: str
    program_hash: str
    """Of the command line, without what differs from life to life."""
    devices: tuple[str, ...]
    started_us: int
    pid: int | None = None
    start_ticks: int | None = None
    was_ready: bool = False


async def load(db: Database) -> list[EngineRecord]:
    """Every engine that may still run, oldest first."""
    return [_record(row) for row in await db.read("SELECT * FROM workers ORDER BY started_us")]


async def put(db: Database, record: EngineRecord) -> None:
    """Remember an engine; returns when it is written. Raises StorageError."""
    await db.write(partial(_write, record))


def post(db: Database, record: EngineRecord) -> None:
    """The same, without waiting for it."""
    db.post(partial(_write, record))


def forget(db: Database, mark: str) -> None:
    """Post that an engine is gone. A row that stays all the same names no living process."""

    def delete(cursor: Cursor) -> None:
        cursor.execute("DELETE FROM workers WHERE mark = ?", (mark,))

    db.post(delete)


def _write(record: EngineRecord, cursor: Cursor) -> None:
    cursor.execute(
        _PUT,
        (
            record.mark,
            record.worker_id,
            record.boot_id,
            record.pid,
            record.start_ticks,
            record.port,
            record.api_key,
            record.spec_hash,
            record.program_hash,
            json.dumps(record.devices),
            record.was_ready,
            record.started_us,
        ),
    )


def _record(row: Row) -> EngineRecord:
    return EngineRecord(
        mark=row["mark"],
        worker_id=row["worker"],
        boot_id=row["boot_id"],
        port=row["port"],
        api_key=row["api_key"],
        spec_hash=row["spec_hash"],
        program_hash=row["program_hash"],
        devices=tuple(json.loads(row["devices"])),
        started_us=row["started_us"],
        pid=row["pid"],
        start_ticks=row["start_ticks"],
        was_ready=bool(row["was_ready"]),
    )
