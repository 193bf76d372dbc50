"""Which GPUs are in quarantine, and why: a restart of inferd mends none.

`gpu` is a device's UUID where that is known, else its name. A write that a crash loses costs
another look at the device.
"""

from __future__ import annotations

from inferd.clock import utc_now_us
from inferd.storage.database import Cursor, Database


async def load(db: Database) -> dict[str, str]:
    """The reason for each. Raises StorageError."""
    rows = await db.read("SELECT gpu, reason FROM quarantine ORDER BY since_us")
    return {row["gpu"]: row["reason"] for row in rows}


def note(db: Database, gpu: str, reason: str | None) -> None:
    """Post that it is in quarantine, or with None that it is not any more."""
    now_us = utc_now_us()

    def write(cursor: Cursor) -> None:
        if reason is None:
            cursor.execute("DELETE FROM quarantine WHERE gpu = ?", (gpu,))
        else:
            cursor.execute(
                "INSERT OR REPLACE INTO quarantine (gpu, reason, since_us) VALUES (?, ?, ?)",
                (gpu, reason, now_us),
            )

    db.post(write)
