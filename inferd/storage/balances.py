"""What is left in the buckets of teams, their models and keys, for the next start.

`quota.buckets.Buckets` is what is true while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from inferd.storage.database import Cursor, Database

_REPLACE = """
INSERT INTO bucket_balances (team, model, key_id, kind, balance, at_us) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (team, model, key_id, kind) DO UPDATE
SET balance = excluded.balance, at_us = excluded.at_us
"""

_FORGET = "DELETE FROM bucket_balances WHERE at_us < ?"
FORGOTTEN_US: Final = 30 * 86_400_000_000
"""What is gone from the config, and revoked keys: their balances are kept for a month."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Of one bucket; `kind` is `tokens` or `requests`. Below zero: a debt.

    Of the team's limit on one model or of one of its keys, if that is named.
    """

    team: str
    kind: str
    balance: float
    model: str = ""
    key_id: str = ""


async def load(db: Database, now_us: int) -> list[tuple[Balance, float]]:
    """Every balance, and how many seconds ago it was so. Clocks set back count as no time."""
    rows = await db.read("SELECT team, kind, balance, model, key_id, at_us FROM bucket_balances")
    return [(Balance(*row[:5]), max(0, now_us - row["at_us"]) / 1e6) for row in rows]


def save(db: Database, balances: Iterable[Balance], now_us: int) -> bool:
    """Post the balances as they are now. False: the writer's queue is full."""
    rows = [(one.team, one.model, one.key_id, one.kind, one.balance, now_us) for one in balances]

    def write(cursor: Cursor) -> None:
        cursor.executemany(_REPLACE, rows)
        cursor.execute(_FORGET, (now_us - FORGOTTEN_US,))

    return db.post(write)
