"""A supervisor of scripted workers, for virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from inferd import clock
from inferd.config.version import EngineOptions, Workers
from inferd.metrics import Metrics
from inferd.workers import place
from inferd.workers.base import Node, WorkerBase
from inferd.workers.client import WorkerClient
from inferd.workers.spec import AttachedSpec, PoolSpec, WorkerSpec
from inferd.workers.states import WorkerState, move
from inferd.workers.supervisor import Supervisor
from inferd.workers.warm_up import WarmUp

S = WorkerState
ID = "chat-1-1"
LOAD_S = 20.0
STOP_S = 5.0


class ScriptedWorker(WorkerBase):
    """Loads for 20 s, then serves; dies `ready_s` later if its model's script says so."""

    script: Callable[[str], float | None] = staticmethod(lambda _: None)
    """Model -> None: serves for ever; 0: fails to load; else seconds READY before it dies."""

    def __init__(
        self,
        worker_id: str,
        pool: str,
        spec: WorkerSpec | AttachedSpec,
        node: Node,
        previous: WorkerBase | None,
    ) -> None:
        super().__init__(
            worker_id,
            pool,
            node,
            client=WorkerClient(worker_id, "http://127.0.0.1:1", None),
            spec_hash=spec.spec_hash,
            inflight_max=1,
            previous=previous,
        )
        self.model = spec.model

    async def run(self) -> None:
        if await self._lived_until(0.0):
            return
        move(self, S.SPAWNING)
        move(self, S.LOADING)
        let_go = await self._lived_until(LOAD_S)
        lifetime_s = type(self).script(self.model)
        if not let_go and lifetime_s == 0:
            move(self, S.FAILED, "it does not load")
            return
        if not let_go:
            move(self, S.WARMING)
            move(self, S.READY)
            if not await self._lived_until(lifetime_s):
                move(self, S.FAILED, "it died")
                return
            await self._finish_leases(lambda: False)
        await asyncio.sleep(STOP_S)
        move(self, S.STOPPED)

    async def _lived_until(self, seconds: float | None) -> bool:
        """Wait; whether it was asked to end before."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.draining:
                    await self._woken.wait()
                    self._woken.clear()
        return self.draining


@dataclass
class Diary:
    """When which worker entered which state."""

    entries: list[tuple[float, str, str]] = field(default_factory=list)
    workers: dict[str, WorkerBase] = field(default_factory=dict)
    serving_least: int | None = None

    def worker_changed(self, worker: WorkerBase, before: WorkerState, after: WorkerState) -> None:
        self.entries.append((clock.monotonic(), worker.id, str(after)))
        self.workers[worker.id] = worker
        if self.serving_least is not None:
            self.serving_least = min(self.serving_least, self.serving)

    def warmed(self, worker: WorkerBase, warm: WarmUp) -> None:
        raise AssertionError("scripted workers are not warmed up")

    def suspected(self, worker: WorkerBase, *, suspected: bool) -> None:
        raise AssertionError("nobody watches scripted workers")

    @property
    def serving(self) -> int:
        return sum(worker.state is S.READY for worker in self.workers.values())

    def times(self, state: WorkerState, worker_id: str = ID) -> list[float]:
        return [at for at, who, what in self.entries if (who, what) == (worker_id, state)]

    def gaps(self, worker_id: str = ID) -> list[float]:
        """From each failure to the start after it."""
        starts = self.times(S.SPAWNING, worker_id)[1:]
        return [b - a for a, b in zip(self.times(S.FAILED, worker_id), starts, strict=False)]


class NoEnvironment:
    def command(self) -> list[str]:
        raise AssertionError("scripted workers start nothing")

    def env(self, extra: Mapping[str, str]) -> dict[str, str]:
        raise AssertionError("scripted workers start nothing")


@asynccontextmanager
async def supervised(
    script: Callable[[str], float | None] = lambda _: None, seed: int = 1
) -> AsyncIterator[tuple[Supervisor, Diary]]:
    """A supervisor whose spawned and attached workers are scripted, stopped at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "Worker", ScriptedWorker)
        patch.setattr(ScriptedWorker, "script", staticmethod(script))
        diary = Diary()
        supervisor = Supervisor(
            diary,
            metrics=Metrics(CollectorRegistry()),
            environment=NoEnvironment(),
            folder=Path("/nowhere"),
            leases_of=lambda _: 0,
            rng=random.Random(seed),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(supervisor.run())
            yield supervisor, diary
            supervisor.stop(0.0)
        assert supervisor.workers == {}


def pool(model: str = "good", count: int = 1, name: str = "chat", **limits: Any) -> PoolSpec:
    spec = WorkerSpec(
        model=model,
        weights=Path("/models/m"),
        checksum=None,
        context_tokens_max=4096,
        engine=EngineOptions(),
        workers=Workers.model_validate(limits),
    )
    return PoolSpec(f"{name}@1", f"{name}-1", spec, count, 60.0, ())


def states(supervisor: Supervisor) -> dict[str, str]:
    return {worker_id: str(worker.state) for worker_id, worker in supervisor.workers.items()}
