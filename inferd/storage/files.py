"""Rows of files: what a file is called, whose it is, which blobs hold its bytes.

A row is written after its bytes are safe in the store and goes before they do, so that no row is
ever without its bytes. `batch.objects.FileStore` is the only writer. An id begins with its moment
of creation: files sort by id, and a page can start behind a file that is gone.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import orjson

from inferd.clock import utc_now_us
from inferd.storage.database import Cursor, Database, Row

Blobs = tuple[tuple[str, int], ...]
"""Blob ids with their bytes, in the order of a file's content."""

_MOMENT_DIGITS: Final = 14
FILE_ID: Final = rf"file-[0-9a-f]{{{_MOMENT_DIGITS + 18}}}"
"""What an id looks like, as a regular expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """One file. Its name is what the client called it: shown, and never a part of any path."""

    id: str
    team: str
    filename: str
    purpose: str
    bytes: int
    blobs: Blobs
    created_us: int
    expires_us: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What one team keeps: finished files and parts of pending uploads."""

    bytes: int = 0
    files: int = 0


def new_file_id(created_us: int) -> str:
    """An id that nobody guesses, for a file made at that moment."""
    return f"file-{created_us:0{_MOMENT_DIGITS}x}{secrets.token_hex(9)}"


def is_file_id(text: str) -> bool:
    return re.fullmatch(FILE_ID, text) is not None


_COLUMNS: Final = "id, team, filename, purpose, bytes, blobs, created_us, expires_us"
_LIVE: Final = "(expires_us IS NULL OR expires_us > :now_us)"

_INSERT = f"""
INSERT INTO files ({_COLUMNS})
VALUES (:id, :team, :filename, :purpose, :bytes, :blobs, :created_us, :expires_us)
"""  # noqa: S608 - column names

_GET = f"SELECT {_COLUMNS} FROM files WHERE id = :id AND team = :team AND {_LIVE}"  # noqa: S608

_PAGE = f"""
SELECT {_COLUMNS} FROM files
WHERE team = :team AND {_LIVE} AND (:purpose IS NULL OR purpose = :purpose)
      AND (:after IS NULL OR id %s :after)
ORDER BY id %s LIMIT :limit
"""  # noqa: S608 - column names

_PAGES: Final = {"asc": _PAGE % (">", "ASC"), "desc": _PAGE % ("<", "DESC")}

_DELETE = f"DELETE FROM files WHERE id = ? AND team = ? RETURNING {_COLUMNS}"  # noqa: S608

_EXPIRE = f"""
DELETE FROM files WHERE id IN (SELECT id FROM files WHERE expires_us <= ? LIMIT ?)
RETURNING {_COLUMNS}
"""  # noqa: S608

_HELD = """
SELECT team, sum(bytes) AS bytes, sum(files) AS files FROM (
    SELECT team, bytes, 1 AS files FROM files
    UNION ALL
    SELECT team, 0, 1 FROM uploads WHERE status = 'pending'
    UNION ALL
    SELECT team, upload_parts.bytes, 0 FROM upload_parts JOIN uploads ON uploads.id = upload_id
) GROUP BY team
"""

_USED = """
SELECT json_extract(entry.value, '$[0]') AS blob FROM files, json_each(files.blobs) AS entry
WHERE blob IN (SELECT value FROM json_each(:blobs))
UNION
SELECT id FROM upload_parts WHERE id IN (SELECT value FROM json_each(:blobs))
"""


async def get(db: Database, team: str, file_id: str) -> FileRow | None:
    """The team's file; None if it is unknown, another team's or expired: all the same."""
    found = await db.read(_GET, {"id": file_id, "team": team, "now_us": utc_now_us()})
    return file_of(found[0]) if found else None


async def page(
    db: Database,
    team: str,
    *,
    purpose: str | None = None,
    after: str | None = None,
    order: str = "desc",
    limit: int,
) -> list[Row]:
    """Rows of `files`, at most `limit`, behind `after`, by creation. `order`: `asc` or `desc`."""
    return await db.read(
        _PAGES[order],
        {
            "team": team,
            "purpose": purpose,
            "after": after,
            "limit": limit,
            "now_us": utc_now_us(),
        },
    )


async def insert(
    db: Database,
    file: FileRow,
    also: Callable[[Cursor], object] | None,
    committed: Callable[[FileRow], None],
) -> FileRow:
    """Store a row and, in the same transaction, what `also` writes; see `Database.write`."""

    def operation(cursor: Cursor) -> FileRow:
        add(cursor, file)
        if also is not None:
            also(cursor)
        return file

    return await db.write(operation, committed)


def add(cursor: Cursor, file: FileRow) -> None:
    """Insert a row inside a transaction of somebody else."""
    cursor.execute(
        _INSERT,
        {
            "id": file.id,
            "team": file.team,
            "filename": file.filename,
            "purpose": file.purpose,
            "bytes": file.bytes,
            "blobs": orjson.dumps(file.blobs).decode(),
            "created_us": file.created_us,
            "expires_us": file.expires_us,
        },
    )


async def delete(
    db: Database, team: str, file_id: str, committed: Callable[[list[FileRow]], None]
) -> list[FileRow]:
    """Delete the team's file; the row that went, or []."""
    return await db.write(
        lambda cursor: [
            file_of(row) for row in cursor.execute(_DELETE, (file_id, team)).fetchall()
        ],
        committed,
    )


async def expire(
    db: Database, now_us: int, limit: int, committed: Callable[[list[FileRow]], None]
) -> list[FileRow]:
    """Delete up to `limit` rows whose time is over; what went."""
    return await db.write(
        lambda cursor: [
            file_of(row) for row in cursor.execute(_EXPIRE, (now_us, limit)).fetchall()
        ],
        committed,
    )


async def held(db: Database) -> dict[str, Held]:
    """What each team keeps."""
    return {row["team"]: Held(row["bytes"], row["files"]) for row in await db.read(_HELD)}


async def used_blobs(db: Database, blobs: Collection[str]) -> set[str]:
    """Those of `blobs` that a file or an upload refers to."""
    parameters = {"blobs": orjson.dumps(list(blobs)).decode()}
    return {row["blob"] for row in await db.read(_USED, parameters)}


async def store_owner(db: Database) -> str:
    """The name under which this database's objects are in the store."""
    (row,) = await db.read("SELECT id FROM store_owner")
    owner = row["id"]
    assert isinstance(owner, str)
    return owner


def file_of(row: Row) -> FileRow:
    """A row of `page`."""
    columns: dict[str, Any] = dict(row)
    columns["blobs"] = tuple((blob, size) for blob, size in orjson.loads(columns["blobs"]))
    return FileRow(**columns)
