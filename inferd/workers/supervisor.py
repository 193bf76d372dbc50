"""What is wanted of workers against what is there, for all pools of this node.

Owns the places. A changed spec is drained out before its successor starts, for both need the same
devices; one place of a pool at a time, the next when the successor is READY. So a pool keeps what
capacity it can, and a spec that does not start stops at the first place. Places that serve nobody,
and workers that someone else runs, are replaced at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from inferd.errors import NotFound
from inferd.metrics import Metrics
from inferd.workers.adoption import end_found
from inferd.workers.base import Node, WorkerBase
from inferd.workers.engine import Environment
from inferd.workers.gpus import Gpus
from inferd.workers.place import Place
from inferd.workers.records import Records
from inferd.workers.spec import PoolSpec
from inferd.workers.states import Observer, WorkerState
from inferd.workers.warm_up import WarmUp
from inferd.workers.watchdog import NOTHING, Expectation

log = logging.getLogger(__name__)

__all__ = ["Observer", "Supervisor"]


class Supervisor:
    """Starts, replaces and ends workers. `apply` says what is wanted; `run` is the service."""

    def __init__(
        self,
        observer: Observer,
        *,
        metrics: Metrics,
        environment: Environment,
        folder: Path,
        leases_of: Callable[[str], int],
        rng: random.Random,
        gpus: Gpus | None = None,
        expected: Callable[[str], Expectation] = lambda _: NOTHING,
    ) -> None:
        """`folder` holds one folder a worker; `leases_of` counts the leases of a worker id.

        `expected` tells what a worker's work should take.

        `gpus` are those that engines may have, all that this process may use unless given.
        """
        self._observer = observer
        self._node = Node(
            observer=self,
            metrics=metrics,
            environment=environment,
            folder=folder,
            leases_of=leases_of,
            gpus=Gpus.of_this_node() if gpus is None else gpus,
            expected=expected,
        )
        self._node.gpus.on_release = self._gpus_released
        self._node.gpus.on_quarantine = self._gpu_quarantined
        self._rng = rng
        self._pools: dict[str, PoolSpec] = {}
        self._places: dict[str, Place] = {}
        self._group: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        self._hurried = False

    @property
    def gpus(self) -> Gpus:
        """Those that engines may have."""
        return self._node.gpus

    @property
    def workers(self) -> Mapping[str, WorkerBase]:
        """The worker of each place, as of now; one that was removed stays until it has ended."""
        return {place.id: place.worker for place in self._places.values()}

    def inherit(self, records: Records) -> None:
        """Write down engines there, and take over or end those that it has found. Before `apply`.

        Until then their GPUs are nobody else's.
        """
        assert not self._places, "workers look for their engines when they are made"
        self._node = replace(self._node, records=records)
        self._node.gpus.remember(records.quarantined)
        self._node.gpus.note = records.judge
        for record in records:
            self._node.gpus.hold(record.mark, record.devices)

    def apply(self, pools: Iterable[PoolSpec]) -> None:
        """Want exactly these pools. Returns at once; the rest shows in the workers' states."""
        assert not self._stopping.is_set(), "nothing can be wanted of a supervisor that stops"
        self._pools = {pool.pool: pool for pool in pools}
        wanted = {
            worker_id: (pool, spec)
            for pool in self._pools.values()
            for worker_id, spec in pool.workers().items()
        }
        for place in self._places.values():
            if place.id not in wanted:
                place.retire()
        for worker_id, (pool, spec) in wanted.items():
            if worker_id in self._places:
                self._places[worker_id].want(pool.pool, spec, pool.drain_s)
            else:
                self._add(Place(worker_id, pool, spec, self._node, self._rng))
        self._roll()

    def restart(self, worker_id: str) -> None:
        """Drain a worker and start it again, or end the wait of one that has failed.

        Raises:
            NotFound: no such worker.
        """
        self._place(worker_id).restart()

    def drain(self, worker_id: str, drain_s: float | None = None) -> None:
        """Drain a worker, in its pool's time unless given; start none there until `restart`.

        Raises:
            NotFound: no such worker.
        """
        self._place(worker_id).hold(drain_s)

    def worker(self, worker_id: str) -> WorkerBase:
        """Raises NotFound."""
        return self._place(worker_id).worker

    def held(self, worker_id: str) -> bool:
        """Whether a worker was drained and is not to be followed by another. Raises NotFound."""
        return self._place(worker_id).held

    def _place(self, worker_id: str) -> Place:
        place = self._places.get(worker_id)
        if place is None:
            known = ", ".join(self._places) or "none"
            raise NotFound(f"There is no worker {worker_id!r}; there are: {known}.")
        return place

    def stop(self, drain_s: float, *, leave: bool = False) -> None:
        """Want nothing any more: all drain and stop at the same time; then `run` returns.

        `leave`: their engines go on running, for the next inferd to take over.
        """
        self._stopping.set()
        self._pools = {}
        for place in self._places.values():
            place.retire(drain_s, leave=leave)
        if self._hurried:
            self.hurry()

    def hurry(self) -> None:
        """Whoever asks twice to stop does not wait for engines to end in their own order."""
        self._hurried = True
        if self._stopping.is_set():
            for place in self._places.values():
                place.worker.hurry()

    async def run(self) -> None:
        """Keep the workers until `stop`. Cancelled, it stops their engines without draining."""
        try:
            async with asyncio.TaskGroup() as self._group:
                for worker_id in {record.worker_id for record in self._node.records}:
                    if worker_id not in self._places:
                        self._group.create_task(end_found(self._node, worker_id))
                for place in self._places.values():
                    self._group.create_task(self._keep(place))
                await self._stopping.wait()
        finally:
            self._group = None

    def worker_changed(self, worker: WorkerBase, before: WorkerState, after: WorkerState) -> None:
        """A worker has moved: told on, then looked at for what can be replaced now."""
        self._observer.worker_changed(worker, before, after)
        self._places[worker.id].moved(after)
        self._roll()

    def warmed(self, worker: WorkerBase, warm: WarmUp) -> None:
        self._observer.warmed(worker, warm)

    def suspected(self, worker: WorkerBase, *, suspected: bool) -> None:
        self._observer.suspected(worker, suspected=suspected)

    def _gpu_quarantined(self, device: str, reason: str) -> None:
        """Whoever has it finishes what it has, and starts again on others."""
        for place in self._places.values():
            if device in place.worker.devices and not place.making_room:
                log.error("worker %s drains: GPU %s is bad: %s", place.id, device, reason)
                place.replace()

    def _gpus_released(self) -> None:
        for place in self._places.values():
            place.gpus_free(self._node.gpus.free)

    def _add(self, place: Place) -> None:
        self._places[place.id] = place
        if self._group is not None:
            self._group.create_task(self._keep(place))

    async def _keep(self, place: Place) -> None:
        while not place.retired:
            await place.run()
            if not self._stopping.is_set():
                await end_found(self._node, place.id)  # it may be wanted again meanwhile
        del self._places[place.id]
        self._node.metrics.forget_worker(place.id)

    def _roll(self) -> None:
        """Replace what is outdated and may make room now."""
        for pool in self._pools.values():
            places = [self._places[worker_id] for worker_id in pool.workers()]
            for place in places:
                if place.outdated and not place.making_room and not place.serving_here:
                    place.replace()
            for place in places:
                if place.outdated and not place.making_room:
                    place.replace()
                if not place.settled:
                    break
