"""What the ledger says of one worker since a moment, to be held against its engine's counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from inferd.inference import Endpoint
from inferd.storage.rollup import HOUR_US, Readable

ESTIMATED_MAX: Final = 1_000
"""Longest list of estimated requests."""
# Several choices of a chat: the engine runs the bare prompt first and then once a choice.
_PROMPT: Final = f"""prompt_tokens * (CASE WHEN choices > 1
AND endpoint IN ('{Endpoint.CHAT}', '{Endpoint.RESPONSES}') THEN choices + 1 ELSE 1 END)"""
# Requests may have arrived before and waited; none does for an hour.
_ROWS: Final = f"""FROM requests WHERE worker = :worker AND ts_us >= :since_us - {HOUR_US}
AND ts_us + CAST(duration_s * 1000000 AS INTEGER) >= :since_us"""
_BILLED: Final = f"""
SELECT count(*), coalesce(sum({_PROMPT}), 0), coalesce(sum(cached_tokens), 0),
coalesce(sum(completion_tokens), 0), coalesce(sum(estimated), 0), coalesce(sum(choices > 1), 0)
{_ROWS}"""
_UNBILLED: Final = """
SELECT count(*), coalesce(sum(prompt_tokens), 0), coalesce(sum(cached_tokens), 0),
coalesce(sum(completion_tokens), 0), coalesce(sum(estimated), 0), coalesce(sum(choices > 1), 0)
FROM unbilled_attempts WHERE worker = :worker AND ts_us >= :since_us"""
_ESTIMATED: Final = f"""SELECT request_id, response_id, ts_us, team, model, version, worker,
outcome, error_code, prompt_tokens, completion_tokens {_ROWS} AND estimated = 1
ORDER BY ts_us LIMIT {ESTIMATED_MAX}"""


@dataclass(frozen=True, slots=True)
class WorkerSum:
    """Tokens as an engine counts them; `choices_rows` are those with more than one."""

    rows: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    estimated: int
    choices_rows: int


async def billed(db: Readable, worker: str, since_us: int) -> WorkerSum:
    """What requests that ended since then are billed for this worker's work."""
    (row,) = await db.read(_BILLED, {"worker": worker, "since_us": since_us})
    return WorkerSum(*row)


async def unbilled(db: Readable, worker: str, since_us: int) -> WorkerSum:
    """What nobody is billed for."""
    (row,) = await db.read(_UNBILLED, {"worker": worker, "since_us": since_us})
    return WorkerSum(*row)


async def estimated(db: Readable, worker: str, since_us: int) -> list[dict[str, Any]]:
    """The requests whose tokens are estimated, oldest first."""
    found = await db.read(_ESTIMATED, {"worker": worker, "since_us": since_us})
    return [dict(row) for row in found]
