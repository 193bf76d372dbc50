"""Rows for tests of the database: keys, which have few columns to fill."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from inferd.storage.database import Cursor, Database

Open = Callable[..., AbstractAsyncContextManager[Database]]


def insert(number: int, cursor: Cursor) -> int:
    """A row in a table of the schema that has few columns to fill."""
    cursor.execute(
        "INSERT INTO keys (id, team, name, prefix, hash, created_us) VALUES (?, 't', '', '', ?, 0)",
        (f"key_{number}", number.to_bytes(32, "big")),
    )
    return number


async def numbers(db: Database) -> list[int]:
    return [int(row["id"][4:]) for row in await db.read("SELECT id FROM keys ORDER BY rowid")]
