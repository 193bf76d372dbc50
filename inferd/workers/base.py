"""What all workers have in common, whoever runs them: state, client, load report, draining.

`Worker` (started by inferd) and `AttachedWorker` (run by someone else) add how they come to be
READY and what ends them. A state is written by `states.move` alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Final

from inferd import clock
from inferd.errors import ShuttingDown, UpstreamError
from inferd.metrics import Metrics
from inferd.workers import engine
from inferd.workers.client import OK, WorkerClient
from inferd.workers.gpus import Gpus
from inferd.workers.records import Records
from inferd.workers.spec import AttachedSpec, Side, WorkerSpec
from inferd.workers.states import Observer, WorkerState, move
from inferd.workers.watchdog import NOTHING, Expectation
from inferd.workers.weights_check import WeightsCheck

LEASES_LOOK_S: Final = 0.05
LOADS_LOOK_S: Final = 0.25
LOADS_S_MAX: Final = 1.0
SERVING: Final = frozenset({WorkerState.READY, WorkerState.DRAINING})


@dataclass(frozen=True, slots=True)
class Node:
    """What the workers of this node share."""

    observer: Observer
    metrics: Metrics
    environment: engine.Environment
    folder: Path
    """`workers/` in the state folder; each worker has one of its own in it."""
    leases_of: Callable[[str], int]
    """How many leases a worker id holds now; asked when draining."""
    gpus: Gpus = field(default_factory=Gpus.of_this_node)
    weights: WeightsCheck = field(default_factory=WeightsCheck)
    expected: Callable[[str], Expectation] = lambda _: NOTHING
    """What a worker's work should take; asked by its watchdog."""
    records: Records = field(default_factory=Records)


class WorkerBase:
    """A place that serves requests, seen from this gateway."""

    def __init__(
        self,
        worker_id: str,
        pool: str,
        node: Node,
        *,
        client: WorkerClient,
        spec_hash: str,
        inflight_max: int,
        previous: WorkerBase | None,
    ) -> None:
        """`previous` lived in the same place before, and has ended."""
        self.id = worker_id
        self.pool = pool
        self.client = client
        self.spec_hash = spec_hash
        self.inflight_max = inflight_max
        self.state: WorkerState = WorkerState.STOPPED if previous is None else previous.state
        self.reason: str = "not started" if previous is None else previous.reason
        self.last_failure = self.reason if self.state is WorkerState.FAILED else ""
        """Why the previous life here ended, if it failed."""
        self.since = clock.monotonic()
        self.since_us = clock.utc_now_us()
        self.loads: engine.Loads | None = None
        self.on_loads: Callable[[engine.Loads], None] | None = None
        """Told of every load report."""
        """The engine's last report; None: unknown, which is neither idle nor full."""
        self.counted_from = engine.Counters(0, 0, 0)
        """Where the engine's counters were when this gateway began to use it."""
        self.counted_since_us: int | None = None
        """When that was; None: at its own start, or it tells none."""
        self.gpus_lacking = 0
        """How many GPUs it needed when it failed because they were not free."""
        self.outlook = ""
        """What the supervisor will do about a worker that has failed."""
        self._node = node
        self._drain_by: float | None = None
        self._woken = asyncio.Event()

    @property
    def observer(self) -> Observer:
        return self._node.observer

    @property
    def metrics(self) -> Metrics:
        return self._node.metrics

    @property
    def pid(self) -> int | None:
        """The engine's process, if it is ours."""
        return None

    @property
    def port(self) -> int | None:
        """The engine's port, if it is ours."""
        return None

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs that its engine has, if it is ours."""
        return ()

    @property
    def adopted(self) -> bool:
        """Whether its engine was started by an earlier inferd."""
        return False

    @property
    def output_path(self) -> Path | None:
        """Where the engine's output goes, if it is ours."""
        return None

    @property
    def progress(self) -> str:
        """How far a start has come, for people."""
        return ""

    @property
    def side(self) -> Side:
        """What it does of a request."""
        return Side.WHOLE

    @property
    def draining(self) -> bool:
        """Whether it was asked to end; its state tells how far that is."""
        return self._drain_by is not None

    def drain(self, deadline_s: float) -> None:
        """Ask it to end: at once if not READY, else when its leases have, in `deadline_s` seconds.

        Asked again, the earlier deadline holds.
        """
        by = clock.monotonic() + deadline_s
        self._drain_by = by if self._drain_by is None else min(by, self._drain_by)
        self._woken.set()

    @property
    def last_lines(self) -> list[str]:
        """The end of the engine's output, if it is ours."""
        return []

    def respec(self, spec: WorkerSpec | AttachedSpec) -> None:
        """From now on the limits of `spec`, whose engine is the one that runs here."""

    def wake(self) -> None:
        """Something has happened that its life must look at now."""
        self._woken.set()

    def hurry(self) -> None:
        """Give an engine that has to end no time for that, now or later."""

    def leave(self) -> None:
        """Ask it to end as `drain(0)`, but to leave its engine running for the next inferd."""
        self.drain(0.0)

    async def run(self) -> None:
        """Live once; returns in STOPPED or FAILED, with nothing of it left."""
        raise NotImplementedError

    async def _sleep(self, seconds: float) -> None:
        """Sleep, or wake up earlier because something was asked or has happened."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()

    async def _finish_leases(self, over: Callable[[], bool]) -> None:
        """READY -> DRAINING: wait for the leases, until the deadline or until it is `over`.

        What its clients have left half-way is still billed then, which takes a second at most.
        """
        move(self, WorkerState.DRAINING, "asked to drain")
        assert self._drain_by is not None
        while self._node.leases_of(self.id) and not over():
            if clock.monotonic() >= self._drain_by:
                self.client.fail_all(ShuttingDown("The worker is being stopped.", retry_after_s=5))
                break
            await self._sleep(LEASES_LOOK_S)
        await self.client.settled()

    async def _report_loads(self) -> None:
        """Service: keep the load report fresh. An engine that cannot tell is unknown."""
        gauge = self.metrics.worker[self.id].kv_utilization
        gauge.set(nan)
        while True:
            await asyncio.sleep(LOADS_LOOK_S)
            asked = self.client.speaks_sglang and self.state in SERVING
            self.loads = await read_loads(self.client) if asked else None
            gauge.set(nan if self.loads is None else self.loads.kv_utilization)
            if self.loads is not None and self.on_loads is not None:
                self.on_loads(self.loads)


async def read_loads(client: WorkerClient) -> engine.Loads | None:
    """The engine's load report; None when it gives none within a second."""
    try:
        status, body = await client.get(engine.LOADS_PATH, LOADS_S_MAX)
    except UpstreamError:
        return None
    return engine.parse_loads(body) if status == OK else None
