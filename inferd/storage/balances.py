"""What teams have left in their buckets. `quota.buckets.Buckets` is what is true while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inferd.storage.database import Cursor, Database

_REPLACE = """
INSERT INTO bucket_balances (team, kind, balance, at_us) VALUES (?, ?, ?, ?)
ON CONFLICT (team, kind) DO UPDATE SET balance = excluded.balance, at_us = excluded.at_us
"""


@dataclass(frozen=True, slots=True)
class Balance:
    """Of one bucket; `kind` is `tokens` or `requests`. Below zero: a debt."""

    team: str
    kind: str
    balance: float


async def load(db: Database, now_us: int) -> list[tuple[Balance, float]]:
    """Every balance, and how many seconds ago it was so. Clocks set back count as no time."""
    rows = await db.read("SELECT team, kind, balance, at_us FROM bucket_balances")
    return [
        (Balance(row["team"], row["kind"], row["balance"]), max(0, now_us - row["at_us"]) / 1e6)
        for row in rows
    ]


def save(db: Database, balances: Iterable[Balance], now_us: int) -> bool:
    """Post the balances as they are now. False: the writer's queue is full."""
    rows = [(one.team, one.kind, one.balance, now_us) for one in balances]

    def write(cursor: Cursor) -> None:
        cursor.executemany(_REPLACE, rows)

    return db.post(write)
