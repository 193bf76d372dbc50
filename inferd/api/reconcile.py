"""The balance between the ledger and the engines' own counters, worker by worker, to the token.

An engine counts from its own start; the ledger is summed from there. What is left over is told as
it is, beside what explains it: requests in flight, estimated ones, several choices.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Protocol

from inferd.errors import UpstreamError
from inferd.storage import worker_sums
from inferd.workers import engine
from inferd.workers.client import OK
from inferd.workers.spec import Side

if TYPE_CHECKING:
    from inferd.fleet import Fleet
    from inferd.storage.database import Database
    from inferd.storage.worker_sums import WorkerSum
    from inferd.workers.base import WorkerBase
    from inferd.workers.engine import Counters

COUNTERS_S_MAX: Final = 5.0
KINDS: Final = ("prompt_tokens", "cached_tokens", "completion_tokens")


class Node(Protocol):
    """The composition root, as far as the balance needs it."""

    db: Database
    fleet: Fleet


async def reconcile(node: Node) -> dict[str, Any]:
    """Every live worker's balance. Raises StorageError.

    An answer that its client has left is in the engine's counters some moments before its bill is
    here, so those bills are waited for first: at most `ABANDON_S_MAX` seconds.
    """
    async with asyncio.TaskGroup() as group:
        for client in node.fleet.clients.values():
            group.create_task(client.settled())
    await node.db.flush()
    started = await node.db.read("SELECT worker, max(started_us) FROM workers GROUP BY worker")
    since_us: dict[str, int] = {row[0]: row[1] for row in started}
    workers = [
        await _balance(node, worker, since_us.get(worker.id))
        for worker in list(node.fleet.workers.values())
        if worker.id in node.fleet.clients
    ]
    asked = [worker for worker in workers if worker["difference"] is not None]
    return {
        "object": "reconciliation",
        "balanced": all(not any(worker["difference"].values()) for worker in asked),
        "workers": workers,
        "estimated": [row for worker in workers for row in worker.pop("estimated_rows")],
    }


async def _balance(node: Node, worker: WorkerBase, started_us: int | None) -> dict[str, Any]:
    since_us = started_us if started_us is not None else worker.counted_since_us
    answer: dict[str, Any] = {
        "worker": worker.id,
        "pool": worker.pool,
        "since_us": since_us,
        "engine": None,
        "billed": None,
        "unbilled": None,
        "difference": None,
        "in_flight": node.fleet.leases_of(worker.id),
        "problem": None,
        "estimated_rows": [],
    }
    if worker.side is Side.PREFILL:
        return answer | {"problem": "what it computes is billed with who makes the answer of it"}
    try:
        counters = await read_counters(worker)
    except UpstreamError as error:
        return answer | {"problem": error.message}
    if since_us is None:
        return answer | {"problem": "it tells no counters that inferd could begin from"}
    before = worker.counted_from
    counted = {kind: getattr(counters, kind) - getattr(before, kind) for kind in KINDS}
    billed = await worker_sums.billed(node.db, worker.id, since_us)
    unbilled = await worker_sums.unbilled(node.db, worker.id, since_us)
    return answer | {
        "engine": counted,
        "billed": asdict(billed),
        "unbilled": asdict(unbilled),
        "difference": _difference(counted, billed, unbilled),
        "estimated_rows": await worker_sums.estimated(node.db, worker.id, since_us),
    }


def _difference(counted: dict[str, int], billed: WorkerSum, unbilled: WorkerSum) -> dict[str, int]:
    """Engine less ledger. What an engine finds cached among several choices it tells nobody."""
    found = {
        kind: counted[kind] - getattr(billed, kind) - getattr(unbilled, kind) for kind in KINDS
    }
    if billed.choices_rows or unbilled.choices_rows:
        del found["cached_tokens"]
    return found


async def read_counters(worker: WorkerBase) -> Counters:
    """Raises UpstreamError: it does not tell."""
    status, body = await worker.client.get(engine.METRICS_PATH, COUNTERS_S_MAX)
    if status != OK:
        raise UpstreamError(f"GET {engine.METRICS_PATH} gave {status}: start it with its metrics")
    try:
        return engine.parse_counters(body.decode("utf-8", "replace"))
    except ValueError as error:
        raise UpstreamError(f"GET {engine.METRICS_PATH} gave no counters") from error
