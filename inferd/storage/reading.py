"""A read-only look at the database of a server that may be running: for commands that list.

SQLite lets others read while one writes; nothing is locked, and nothing is migrated.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from inferd.errors import StorageError
from inferd.storage.connection import BUSY_TIMEOUT_S
from inferd.storage.migrate import load_migrations
from inferd.storage.transaction import translated

DATABASE_FILE: Final = "inferd.db"


class Reading:
    """One connection. Calls are synchronous: for the command line, never for a server's loop."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.path = path

    async def read(
        self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()
    ) -> list[sqlite3.Row]:
        """All rows of a SELECT."""
        with translated(str(self.path)):
            return self._connection.execute(sql, parameters).fetchall()

    def stream(
        self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()
    ) -> Iterator[sqlite3.Row]:
        """The rows of a SELECT, one after another."""
        with translated(str(self.path)):
            yield from self._connection.execute(sql, parameters)


@contextmanager
def reading(state_dir: Path) -> Iterator[Reading]:
    """The database in a state folder, for reading.

    Raises:
        StorageError: there is none, or it is of another version of inferd.
    """
    path = state_dir / DATABASE_FILE
    if not path.exists():
        raise StorageError(f"{path} is not there yet: `inferd serve` makes it at its first start.")
    with translated(str(path)):
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S
        )
    with closing(connection):
        connection.row_factory = sqlite3.Row
        with translated(str(path)):
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        wanted = len(load_migrations())
        if version != wanted:
            raise StorageError(
                f"{path} is of version {version}, this inferd reads {wanted}: start the server of"
                " this version once, or use the `inferd` that it was made by."
            )
        yield Reading(connection, path)
