"""What engines computed and nobody pays for: the rest of the balance between ledger and engines."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import partial

from inferd.storage.database import Cursor, Database
from inferd.storage.rollup import Readable

_INSERT = """
INSERT INTO unbilled_attempts (request_id, ts_us, worker, reason, prompt_tokens, cached_tokens,
    completion_tokens, estimated, choices) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


@dataclass(frozen=True, slots=True)
class UnbilledAttempt:
    """One attempt; `ts_us` is when its request arrived.

    `reason`: `failed` (its client saw nothing of it), `placed_again`, `preempted`, `cut` (a line).
    """

    request_id: str
    ts_us: int
    worker: str
    reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    estimated: bool
    choices: int


def record(db: Database, attempt: UnbilledAttempt) -> bool:
    """Post an attempt. False: the writer's queue is full and it is lost."""
    return db.post(partial(_insert, attempt))


def _insert(attempt: UnbilledAttempt, cursor: Cursor) -> None:
    cursor.execute(_INSERT, astuple(attempt))


async def of_request(db: Readable, request_id: str) -> list[UnbilledAttempt]:
    """The attempts of one request, in the order of their ends."""
    found = await db.read(
        "SELECT * FROM unbilled_attempts WHERE request_id = ? ORDER BY rowid", (request_id,)
    )
    return [UnbilledAttempt(**{**row, "estimated": bool(row["estimated"])}) for row in found]
