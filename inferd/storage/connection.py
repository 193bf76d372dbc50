"""One SQLite connection as the event loop sees it: functions go in, results come out.

`ThreadConnection` is aiosqlite's: its own non-daemon thread, which would keep the process from
exiting if it stayed open; so connections exist only inside `async with`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar, cast
from urllib.parse import quote

import aiosqlite

T = TypeVar("T")

BUSY_TIMEOUT_S = 5.0
"""How long SQLite itself waits for a lock that another process holds."""


class Connection(Protocol):
    """What `Database` needs of a connection. Calls run one after another, in order."""

    async def call(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run `function` where the connection lives. It runs to its end even if we are cancelled.

        Raises what `function` raises.
        """
        ...


class ThreadConnection(aiosqlite.Connection):
    """A connection to a file, in a thread of its own, in autocommit mode."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        uri = f"file:{quote(str(path))}?mode={'ro' if read_only else 'rw'}"

        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(
                uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S
            )
            connection.row_factory = sqlite3.Row
            return connection

        super().__init__(connect, iter_chunk_size=64)

    async def call(self, function: Callable[[sqlite3.Connection], T]) -> T:
        # One hop to the thread for a whole batch: aiosqlite's public calls take one for each
        # statement. The same method is under all of them.
        return cast("T", await self._execute(function, self._conn))  # type: ignore[no-untyped-call]
