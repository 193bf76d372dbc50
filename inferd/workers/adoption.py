"""Engines that an earlier inferd has left: which fit, whether they serve, and the end of the rest.

Owns nothing: the records are `Records`', a worker owns the engine that it takes over. An engine
fits if it is the recorded process, started as it would be started now; it serves if it is ready,
takes its key and has the model. What it still does for clients of the dead inferd is aborted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Final

import orjson

from inferd.errors import UpstreamError
from inferd.storage.workers import EngineRecord
from inferd.workers import engine
from inferd.workers.base import Node, read_loads
from inferd.workers.client import OK, WorkerClient
from inferd.workers.engine import Environment, Loads
from inferd.workers.spec import WorkerSpec

ANSWER_S_MAX: Final = 5.0
"""A healthy engine answers within milliseconds; one that does not in this time is ended."""
ABORTED_S_MAX: Final = 1.0
LOOK_S: Final = 0.05


def program_hash(spec: WorkerSpec, environment: Environment) -> str:
    """Of what the engine is started with, but for what each life has of its own.

    It changes when a newer inferd would start the same spec with other flags.
    """
    words = [*environment.command(), *engine.arguments(spec, 0, Path("key"))]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def fitting(node: Node, worker_id: str, spec: WorkerSpec) -> EngineRecord | None:
    """The engine that was left for this worker and runs as it would be started now, if any."""
    if not node.records.of(worker_id):
        return None
    record = node.records.fitting(worker_id, spec.spec_hash, program_hash(spec, node.environment))
    if record is None or node.gpus.held(record.mark) != engine.gpus_needed(spec.engine):
        return None
    if any(device in node.gpus.quarantined for device in record.devices):
        return None
    return record


async def end_found(node: Node, worker_id: str) -> None:
    """End what was left for a worker and not taken over; then its GPUs may be used again."""
    for record in node.records.of(worker_id):
        if not await node.records.end(
            record, stop_grace_s=engine.STOP_GRACE_S, files=engine.LOAD_REPORTS
        ):
            continue
        node.metrics.earlier_engines["ended"].inc()
        await node.gpus.returned(record.devices)
        node.gpus.let_go(record.mark)


async def resume(client: WorkerClient, model: str) -> tuple[str | None, Loads | None]:
    """Make sure that an engine serves, with nothing of earlier clients left in it.

    Why it cannot be used, or None; and its load, if it tells.
    """
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            while not await client.ready(ANSWER_S_MAX):  # noqa: ASYNC110 - it sends no events
                await asyncio.sleep(LOOK_S)
            await _check_identity(client, model)
            if not await client.abort_all():
                return "it does not confirm that it has aborted what it had", None
    except TimeoutError:
        return f"it was not ready within {ANSWER_S_MAX:g} s", None
    except UpstreamError as error:
        return error.message, None
    loads = await read_loads(client)
    with suppress(TimeoutError):
        async with asyncio.timeout(ABORTED_S_MAX):
            while loads is not None and (loads.running or loads.waiting):
                await asyncio.sleep(LOOK_S)
                loads = await read_loads(client)
    return None, loads


async def _check_identity(client: WorkerClient, model: str) -> None:
    """Make sure that it takes the key, and has the model, that were written down of it.

    Raises:
        UpstreamError: it does not.
    """
    status, body = await client.get(engine.MODELS_PATH, ANSWER_S_MAX)
    if status != OK:
        raise UpstreamError(f"it refuses its key (GET {engine.MODELS_PATH} gave {status})")
    try:
        names = [str(entry["id"]) for entry in orjson.loads(body)["data"]]
    except (ValueError, TypeError, KeyError) as error:
        raise UpstreamError(f"GET {engine.MODELS_PATH} gave no list of models") from error
    if model not in names:
        raise UpstreamError(f"it serves {', '.join(names[:5]) or 'no model'}, not {model}")
