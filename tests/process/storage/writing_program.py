"""A program that writes to the database at its first argument until it is killed.

Prints `posted N` when rows 0..N are committed and `awaited N` when the awaited write N is.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path

from inferd.storage.database import Cursor, Database
from tests.fakes.running_database import running

ROWS_BETWEEN_REPORTS = 300
AWAITED_FROM = 1_000_000_000


def insert(number: int, cursor: Cursor) -> None:
    cursor.execute(
        "INSERT INTO keys (id, team, name, prefix, hash, created_us) VALUES (?, 't', '', '', ?, ?)",
        (f"key_{number}", number.to_bytes(32, "big"), number),
    )


async def main(path: Path) -> None:
    async with running(Database.open(path)) as db:
        rows = awaited = 0
        while True:
            for _ in range(ROWS_BETWEEN_REPORTS):
                db.post(partial(insert, rows))
                rows += 1
            await db.write(partial(insert, AWAITED_FROM + awaited))
            awaited += 1
            sys.stdout.write(f"posted {rows - 1} awaited {AWAITED_FROM + awaited - 1}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
