"""`Database` without threads, for virtual time: the real queue, writer and SQL, in memory.

Only the connection is a stand-in: it runs what it is given at once, in the loop's own thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Self, TypeVar

from inferd.storage.database import Database, Flush, prepare

T = TypeVar("T")


class InlineConnection:
    """Has the interface of `storage.connection.Connection`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def call(self, function: Callable[[sqlite3.Connection], T]) -> T:
        result = function(self._connection)
        await asyncio.sleep(0)  # what the function told the loop to do comes before the result
        return result


class InlineDatabase(Database):
    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path = Path(":memory:"), observe: Callable[[Flush], None] | None = None
    ) -> AsyncIterator[Self]:
        """An empty database of the newest schema. As with the real one, `run` must run."""
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as raw:
            raw.row_factory = sqlite3.Row
            prepare(raw, str(path))
            connection = InlineConnection(raw)
            async with cls(
                str(path), connection, [connection], observe
            ).flushed_at_end() as database:
                yield database
