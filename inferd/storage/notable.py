"""Requests of the ledger worth a look: the slowest, and those that were not served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferd.storage.rollup import Readable

_SLOWEST = """
SELECT request_id, ts_us, team, model, version, worker, priority, prompt_tokens, completion_tokens,
    queue_wait_s, predicted_ttft_s, ttft_s, duration_s, placement_reason, outcome
FROM requests WHERE ts_us >= ? AND priority = 'interactive' AND ttft_s IS NOT NULL
ORDER BY ttft_s DESC LIMIT ?
"""

_UNSERVED = """
SELECT request_id, ts_us, team, model, version, priority, prompt_tokens, queue_wait_s, duration_s,
    outcome, error_code
FROM requests WHERE ts_us >= ? AND outcome IN ('refused', 'failed')
ORDER BY ts_us DESC LIMIT ?
"""


async def slowest(db: Readable, since_us: int, limit: int) -> list[dict[str, Any]]:
    """Streamed interactive requests since then by their TTFT, longest first."""
    return [dict(row) for row in await db.read(_SLOWEST, (since_us, limit))]


async def unserved(db: Readable, since_us: int, limit: int) -> list[dict[str, Any]]:
    """Refused or failed since then, newest first."""
    return [dict(row) for row in await db.read(_UNSERVED, (since_us, limit))]
