"""Checks a pool's own tokenizer against its engine, whenever a worker becomes ready.

Owns the list of workers that are yet to be asked. Until a check has passed, and for workers whose
model folder is not here, prompts are estimated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Final

from inferd.errors import InferdError, InvalidAnswer
from inferd.inference import Endpoint, ModelKind
from inferd.quota.exact_counts import ExactCounts, Messages
from inferd.workers.base import WorkerBase
from inferd.workers.worker import Worker

ASK_S_MAX: Final = 30.0
WAITING_MAX: Final = 1_024

log = logging.getLogger(__name__)


class CountChecks:
    """`run` is a service; `ready` is told of each worker that takes requests from now on."""

    def __init__(self, counts: ExactCounts) -> None:
        self._counts = counts
        self._waiting: deque[Worker] = deque(maxlen=WAITING_MAX)
        self._woken = asyncio.Event()

    def ready(self, worker: WorkerBase) -> None:
        if isinstance(worker, Worker) and worker.spec.kind is ModelKind.CHAT:
            self._waiting.append(worker)
            self._woken.set()

    async def run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._waiting:
                await self._check(self._waiting.popleft())

    async def _check(self, worker: Worker) -> None:
        spec = worker.spec

        async def engine_count(messages: Messages) -> int:
            payload: dict[str, Any] = {"model": spec.model, "messages": list(messages)}
            answer = await worker.client.complete(
                Endpoint.TOKENIZE, payload | {"add_generation_prompt": True}, ASK_S_MAX
            )
            count = answer.get("count")
            if not isinstance(count, int):
                raise InvalidAnswer("The worker's answer holds no count.")
            return count

        try:
            why_not = await self._counts.check(worker.pool, spec.weights, engine_count)
        except InferdError as error:
            why_not = f"worker {worker.id} could not be asked: {error.message}"
        if why_not is None:
            log.info("prompts of %s are counted exactly where an estimate decides", worker.pool)
        else:
            log.info("prompts of %s are only estimated: its tokenizer: %s", worker.pool, why_not)
