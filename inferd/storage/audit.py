"""What admins did, one row an action: who said to be doing it, what, to what, and how it ended."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from functools import partial
from typing import Final

from inferd.storage.database import Cursor, Database
from inferd.storage.rollup import Readable

ACTIONS_MAX: Final = 10_000
"""Longest list that one call returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """`status` is that of the HTTP answer; 0 for an action that came by no request."""

    ts_us: int
    actor: str
    action: str
    target: str
    status: int
    request_id: str


_COLUMNS: Final = ", ".join(field.name for field in fields(Action))
_INSERT: Final = f"INSERT INTO audit ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608 - names


def record(db: Database, action: Action) -> bool:
    """Post an action. False: the writer's queue is full and it is lost."""
    return db.post(partial(insert, action))


def insert(action: Action, cursor: Cursor) -> None:
    """Write an action in a transaction of the caller's."""
    cursor.execute(_INSERT, astuple(action))


async def actions(db: Readable, since_us: int = 0, limit: int = 100) -> list[Action]:
    """The newest actions, newest first; at most `ACTIONS_MAX`."""
    found = await db.read(
        f"SELECT {_COLUMNS} FROM audit WHERE ts_us >= ? "  # noqa: S608 - made of field names
        "ORDER BY id DESC LIMIT ?",
        (since_us, min(limit, ACTIONS_MAX)),
    )
    return [Action(**dict(row)) for row in found]
