"""A supervisor over fake engines, with everything it tells written down."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
from prometheus_client import CollectorRegistry

from inferd.config.version import EngineOptions, Workers
from inferd.inference import Usage
from inferd.metrics import Metrics
from inferd.upstream.wire import Exchange
from inferd.workers.base import WorkerBase
from inferd.workers.gpus import Gpus
from inferd.workers.spec import AttachedSpec, PoolSpec, WorkerSpec
from inferd.workers.states import WorkerState
from inferd.workers.supervisor import Supervisor
from inferd.workers.warm_up import WarmUp
from inferd.workers.watchdog import NOTHING, Expectation
from tests.fakes.engines import fake_environment

# The fake engine knows SGLang's flags, but not the file that the key is in.
FAKE_ENGINE = """
import json, sys
from tests.fake_engine.life import main
flags = sys.argv[1:]
key = json.load(open(flags[flags.index("--config") + 1]))["api-key"]
sys.exit(main([*flags, "--api-key", key]))
"""
POOL = "chat@1"
ID = "chat-1-1"


class FakeEnvironment:
    """Where the engine is "installed"."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", FAKE_ENGINE]

    def env(self, extra: Mapping[str, str]) -> dict[str, str]:
        return fake_environment(extra)


@dataclass(frozen=True)
class Change:
    worker: str
    after: WorkerState
    reason: str
    pid: int | None


@dataclass
class Diary:
    """The observer: what happened, in order."""

    changes: list[Change] = field(default_factory=list)
    warm_ups: list[tuple[str, Usage, float, float]] = field(default_factory=list)
    suspicions: list[bool] = field(default_factory=list)
    written: asyncio.Event = field(default_factory=asyncio.Event)

    def worker_changed(self, worker: WorkerBase, before: WorkerState, after: WorkerState) -> None:
        self.changes.append(Change(worker.id, after, worker.reason, worker.pid))
        self.written.set()

    def warmed(self, worker: WorkerBase, warm: WarmUp) -> None:
        self.warm_ups.append((worker.id, warm.usage, warm.ttft_s, warm.tpot_s))

    def suspected(self, worker: WorkerBase, *, suspected: bool) -> None:
        self.suspicions.append(suspected)

    def states(self, worker_id: str = ID) -> list[str]:
        return [str(change.after) for change in self.changes if change.worker == worker_id]

    def reasons(self, worker_id: str = ID) -> list[str]:
        return [
            change.reason
            for change in self.changes
            if change.worker == worker_id and change.after is WorkerState.FAILED
        ]

    async def entered(self, state: WorkerState, *, worker_id: str = ID, times: int = 1) -> None:
        """Until the worker has entered a state for the nth time since the beginning."""
        while self.states(worker_id).count(state) < times:
            self.written.clear()
            await self.written.wait()


class Leases(dict[str, int]):
    """How many leases each worker holds, and how often it was asked for."""

    def __init__(self) -> None:
        self.looks = 0

    def of(self, worker_id: str) -> int:
        self.looks += 1
        return self.get(worker_id, 0)


@dataclass
class Rig:
    supervisor: Supervisor
    diary: Diary
    registry: CollectorRegistry
    leases: Leases
    folder: Path
    weights: Path
    work: dict[str, Expectation] = field(default_factory=dict)

    @property
    def worker(self) -> Any:
        return self.supervisor.workers[ID]

    def expect(self, **seconds: float) -> None:
        """What its work should take, which the pool's cost model says in a whole inferd."""
        self.work[ID] = Expectation(**seconds)

    def spec(self, *faults: dict[str, Any], speed: float = 50.0, **limits: Any) -> WorkerSpec:
        """A worker whose engine has these faults; `limits` are keys of [workers]."""
        flags = ["--speed", str(speed)]
        for fault in faults:
            flags += ["--fault", orjson.dumps(fault).decode()]
        return WorkerSpec(
            model="chat",
            weights=self.weights,
            checksum=None,
            context_tokens_max=4096,
            engine=EngineOptions(device="cpu", running_max=16, extra_args=tuple(flags)),
            workers=Workers.model_validate({"restart_backoff_s": 0.1, **limits}),
        )

    def on_gpus(self, number: int) -> WorkerSpec:
        """A worker that needs so many GPUs, which the fake engine does not look for."""
        spec = self.spec()
        options = {"device": "cuda", "tensor_parallel": number}
        return replace(spec, engine=spec.engine.model_copy(update=options))

    def pool(
        self, spec: WorkerSpec | None, *attached: AttachedSpec, count: int = 1, drain_s: float = 5.0
    ) -> PoolSpec:
        return PoolSpec(POOL, "chat-1", spec, count, drain_s, attached)

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


async def until(what: str, condition: Callable[[], object], limit_s: float = 20.0) -> None:
    """Until something holds that no event tells of; `what` that is, for when it never does."""
    try:
        async with asyncio.timeout(limit_s):
            while not condition():  # noqa: ASYNC110 - processes and files send no events
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {limit_s:g} s: {what}") from None


async def read_on(exchange: Exchange) -> None:
    """Read an answer that never ends; returns by an error alone."""
    while True:
        await exchange.read()


def model_folder(path: Path) -> Path:
    """What passes for a complete model."""
    path.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (path / name).write_text("{}")
    return path


@asynccontextmanager
async def running(tmp_path: Path, gpus: Gpus | None = None) -> AsyncIterator[Rig]:
    """The supervisor runs; leaving stops it, and with it everything it has started."""
    diary, registry, leases = Diary(), CollectorRegistry(), Leases()
    work: dict[str, Expectation] = {}
    supervisor = Supervisor(
        diary,
        metrics=Metrics(registry),
        environment=FakeEnvironment(),
        folder=tmp_path / "workers",
        leases_of=leases.of,
        rng=random.Random(1),
        gpus=gpus,
        expected=lambda worker_id: work.get(worker_id, NOTHING),
    )
    weights = model_folder(tmp_path / "model")
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        yield Rig(supervisor, diary, registry, leases, tmp_path / "workers", weights, work)
        supervisor.stop(0.0)
