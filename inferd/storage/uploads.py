"""Rows of uploads: files that arrive in parts, and the parts until the file is complete.

A part's id is that of its blob. Every change is one transaction that checks the status it starts
from, so that of two calls at the same time one finds the other's result.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from inferd.errors import InvalidField, NotFound, RequestError
from inferd.storage import files
from inferd.storage.database import Cursor, Database, Row
from inferd.storage.files import Blobs, FileRow

KEPT_US: Final = 86_400_000_000
"""How long an upload that is over is remembered, so that late calls get a clear answer."""
PARTS_MAX: Final = 1_000


class UploadStatus(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadRow:
    """One upload. `bytes` is what was announced; `file_life_s` is what its file will live."""

    id: str
    team: str
    filename: str
    purpose: str
    bytes: int
    created_us: int
    expires_us: int
    file_life_s: int | None
    status: UploadStatus = UploadStatus.PENDING
    file_id: str | None = None

    def status_at(self, now_us: int) -> UploadStatus:
        if self.status is UploadStatus.PENDING and self.expires_us <= now_us:
            return UploadStatus.EXPIRED
        return self.status


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    id: str
    upload_id: str
    bytes: int
    created_us: int


@dataclass(frozen=True, slots=True)
class Ended:
    """What an upload leaves behind when it ends: blobs that no row refers to any more."""

    team: str
    blobs: Blobs


def new_upload_id() -> str:
    return f"upload_{secrets.token_hex(16)}"


_COLUMNS: Final = (
    "id, team, filename, purpose, bytes, created_us, expires_us, file_life_s, status, file_id"
)
_INSERT = f"""
INSERT INTO uploads ({_COLUMNS})
VALUES (:id, :team, :filename, :purpose, :bytes, :created_us, :expires_us, :file_life_s, :status,
        :file_id)
"""  # noqa: S608 - column names

_GET = f"SELECT {_COLUMNS} FROM uploads WHERE id = ? AND team = ?"  # noqa: S608

_PARTS = "SELECT id, upload_id, bytes, created_us FROM upload_parts WHERE upload_id = ?"

_INSERT_PART = """
INSERT INTO upload_parts (id, upload_id, bytes, created_us)
VALUES (:id, :upload_id, :bytes, :created_us)
"""

_END = "UPDATE uploads SET status = ?, file_id = ? WHERE id = ?"

_DELETE_PARTS = "DELETE FROM upload_parts WHERE upload_id = ? RETURNING id, bytes"

_OVERDUE = """
SELECT id, team FROM uploads WHERE expires_us <= ? AND status = 'pending' LIMIT ?
"""

_FORGET = "DELETE FROM uploads WHERE expires_us <= ? AND status <> 'pending'"


async def create(
    db: Database,
    upload: UploadRow,
    also: Callable[[Cursor], object] | None,
    committed: Callable[[UploadRow], None],
) -> UploadRow:
    """Store a new upload and, in the same transaction, what `also` writes; it may refuse."""

    def operation(cursor: Cursor) -> UploadRow:
        if also is not None:
            also(cursor)
        cursor.execute(_INSERT, asdict(upload))
        return upload

    return await db.write(operation, committed)


async def get(db: Database, team: str, upload_id: str) -> UploadRow:
    """The team's upload.

    Raises:
        NotFound: unknown, or another team's.
    """
    return _found(await db.read(_GET, (upload_id, team)), upload_id)


async def parts(db: Database, upload_id: str) -> dict[str, PartRow]:
    """Its parts by id."""
    return {row["id"]: PartRow(**dict(row)) for row in await db.read(_PARTS, (upload_id,))}


async def add_part(
    db: Database, team: str, part: PartRow, committed: Callable[[PartRow], None]
) -> PartRow:
    """Store a part whose bytes are in the store.

    Raises:
        NotFound, RequestError: the upload is gone or over, or has all the bytes it may have.
    """

    def operation(cursor: Cursor) -> PartRow:
        upload = _pending(cursor, team, part.upload_id, part.created_us)
        there = cursor.execute(_PARTS, (upload.id,)).fetchall()
        if len(there) >= PARTS_MAX:
            raise RequestError(f"The Upload has {PARTS_MAX} parts already, as many as it may have.")
        if (too_many := sum(row["bytes"] for row in there) + part.bytes) > upload.bytes:
            raise RequestError(
                f"The Upload was announced with {upload.bytes} bytes, and with this part it would "
                f"have {too_many}."
            )
        cursor.execute(_INSERT_PART, asdict(part))
        return part

    return await db.write(operation, committed)


async def complete(
    db: Database,
    file: FileRow,
    upload_id: str,
    part_ids: Sequence[str],
    committed: Callable[[Ended], None],
) -> Ended:
    """Make `file` of the parts, in their order; what is left over of the upload.

    Raises:
        NotFound, RequestError: the upload is gone or over, or a part is.
    """

    def operation(cursor: Cursor) -> Ended:
        _pending(cursor, file.team, upload_id, file.created_us)
        there = {row["id"]: row["bytes"] for row in cursor.execute(_PARTS, (upload_id,))}
        check_parts(part_ids, there)
        cursor.execute(_DELETE_PARTS, (upload_id,)).fetchall()
        files.add(cursor, file)
        cursor.execute(_END, (UploadStatus.COMPLETED, file.id, upload_id))
        left = tuple((one, size) for one, size in there.items() if one not in part_ids)
        return Ended(file.team, left)

    return await db.write(operation, committed)


async def cancel(
    db: Database, team: str, upload_id: str, now_us: int, committed: Callable[[Ended], None]
) -> Ended:
    """End an upload without a file.

    Raises:
        NotFound, RequestError: it is gone or over.
    """

    def operation(cursor: Cursor) -> Ended:
        _pending(cursor, team, upload_id, now_us)
        return _ended(cursor, team, upload_id, UploadStatus.CANCELLED)

    return await db.write(operation, committed)


async def expire(
    db: Database,
    now_us: int,
    limit: int,
    committed: Callable[[list[Ended]], None],
) -> list[Ended]:
    """End up to `limit` uploads whose time is over, and forget those that ended long ago."""

    def operation(cursor: Cursor) -> list[Ended]:
        overdue = cursor.execute(_OVERDUE, (now_us, limit)).fetchall()
        ended = [_ended(cursor, row["team"], row["id"], UploadStatus.EXPIRED) for row in overdue]
        cursor.execute(_FORGET, (now_us - KEPT_US,))
        return ended

    return await db.write(operation, committed)


def check_parts(part_ids: Sequence[str], there: dict[str, int]) -> None:
    """Raises InvalidField for a part that is not there, or named twice."""
    for at, (part_id, times) in enumerate(Counter(part_ids).items()):
        if part_id not in there:
            raise InvalidField(
                f"No such part: '{part_id[:64]}' does not belong to this Upload.",
                param=f"part_ids[{at}]",
            )
        if times > 1:
            raise InvalidField(f"The part '{part_id}' is named {times} times.", param="part_ids")


def check_pending(upload: UploadRow, now_us: int) -> None:
    """Raises RequestError naming the status that an upload is in, if it takes nothing more."""
    status = upload.status_at(now_us)
    if status is not UploadStatus.PENDING:
        raise RequestError(
            f"The Upload '{upload.id}' is {status}: it takes nothing more. Create another one.",
            param="upload_id",
        )


def _pending(cursor: Cursor, team: str, upload_id: str, now_us: int) -> UploadRow:
    upload = _found(cursor.execute(_GET, (upload_id, team)).fetchall(), upload_id)
    check_pending(upload, now_us)
    return upload


def _ended(cursor: Cursor, team: str, upload_id: str, status: UploadStatus) -> Ended:
    gone = cursor.execute(_DELETE_PARTS, (upload_id,)).fetchall()
    cursor.execute(_END, (status, None, upload_id))
    return Ended(team, tuple((row["id"], row["bytes"]) for row in gone))


def _found(rows: list[Row], upload_id: str) -> UploadRow:
    if not rows:
        raise NotFound(f"No such Upload object: {upload_id[:64]}", param="upload_id")
    columns = dict(rows[0])
    columns["status"] = UploadStatus(columns["status"])
    return UploadRow(**columns)
