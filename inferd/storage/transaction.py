"""Many writes in one SQLite transaction, and sqlite3's errors told in our words.

Everything here is synchronous and runs where the connection lives (its own thread). Invariant:
after `transact` the connection is outside any transaction, whatever happened.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from inferd.errors import StorageError

_BROKEN_FILE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_FORBIDDEN = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_AUTH,
)
_HELD = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_DISK = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_WHOLE_BATCH = (*_BROKEN_FILE, *_FORBIDDEN, *_HELD, *_DISK, sqlite3.SQLITE_NOMEM)
"""Errors of the file, not of one write: they end the transaction."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one write of a committed transaction gave: a value, or why it alone was undone."""

    value: Any = None
    error: Exception | None = None


def transact(
    connection: sqlite3.Connection, operations: Sequence[Callable[[sqlite3.Cursor], Any]]
) -> list[Result]:
    """Run the operations in one transaction, each in a savepoint; one result for each.

    An operation that raises is undone alone. Raises sqlite3.Error when the file itself fails
    (disk full, unreadable, held by another process): then nothing was written.
    """
    cursor = connection.cursor()
    cursor.execute("BEGIN IMMEDIATE")
    try:
        results = [_attempt(cursor, operation) for operation in operations]
        cursor.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.rollback()
    return results


def _attempt(cursor: sqlite3.Cursor, operation: Callable[[sqlite3.Cursor], Any]) -> Result:
    cursor.execute("SAVEPOINT one")
    try:
        result = Result(value=operation(cursor))
    except Exception as error:
        # SQLite ends the whole transaction by itself after some errors: then this one is not alone.
        if _primary_code(error) in _WHOLE_BATCH or not cursor.connection.in_transaction:
            raise
        cursor.execute("ROLLBACK TO one")
        result = Result(error=error)
    cursor.execute("RELEASE one")
    return result


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn sqlite3.Error and OSError into StorageError naming `path` and the next step."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise storage_error(error, path) from error


def storage_error(error: Exception, path: str) -> StorageError:
    """The StorageError for a failure at `path`; a StorageError comes back as a fresh copy."""
    if isinstance(error, StorageError):
        return StorageError(error.message)
    return StorageError(f"{path}: {error}. {_next_step(error)}")


def _next_step(error: Exception) -> str:
    code = _primary_code(error)
    if code == sqlite3.SQLITE_FULL:
        return "Free space on the disk that holds it, then start inferd again."
    if code == sqlite3.SQLITE_IOERR:
        return (
            "Reading or writing failed: check free space, quota and file size limit there, and "
            "the system log for disk errors."
        )
    if code in _BROKEN_FILE:
        return (
            "The file is not a usable inferd database: restore it from a backup, or move it away "
            "together with its -wal and -shm files to start with an empty one."
        )
    if code in _FORBIDDEN or isinstance(error, OSError):
        return (
            "Check that its folder exists and that the user running inferd may write there "
            "([server].state_dir in inferd.toml)."
        )
    if code in _HELD:
        return "Another process holds the database: stop it, or wait until it is done."
    return "This is a fault in inferd: report it with this message."


def _primary_code(error: Exception) -> int | None:
    """SQLite's error class without its details; None if SQLite did not raise it."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
