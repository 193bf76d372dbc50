"""One worker id: one life after another, with a growing wait after each failure, up to a ceiling.

The place decides when the next life begins; the supervisor says what is wanted in it, and when a
running worker must make room for what is wanted now.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from contextlib import suppress
from typing import Final

from inferd import clock
from inferd.config.version import Workers
from inferd.workers.attached import AttachedWorker
from inferd.workers.base import Node, WorkerBase
from inferd.workers.spec import AttachedSpec, PoolSpec, WorkerSpec
from inferd.workers.states import WorkerState
from inferd.workers.worker import Worker

log = logging.getLogger(__name__)

HOUR_S: Final = 3_600.0
HEALTHY_S: Final = 60.0
"""A worker that was READY for so long had started well: the next wait is the shortest again."""
DOUBLINGS_MAX: Final = 32
LINE_CHARS_MAX: Final = 200
"""Of a line of output that a reason repeats."""


class Place:
    """Holds the worker of one id. `run` until nothing is wanted here any more."""

    def __init__(
        self,
        worker_id: str,
        pool: PoolSpec,
        spec: WorkerSpec | AttachedSpec,
        node: Node,
        rng: random.Random,
    ) -> None:
        self.id = worker_id
        self._pool = pool.pool
        self._drain_s = pool.drain_s
        self._node = node
        self._rng = rng
        self._wanted: WorkerSpec | AttachedSpec | None = spec
        self._failures = 0
        self._restarts: deque[float] = deque()
        self._ready_since: float | None = None
        self._woken = asyncio.Event()
        self._used = False
        self.held = False
        """Drained by hand: nothing is started here until `restart`."""
        self.worker = self._new_worker(spec, None)

    @property
    def retired(self) -> bool:
        """Whether nothing is wanted here any more."""
        return self._wanted is None

    @property
    def outdated(self) -> bool:
        """Whether the worker here was started for something else than is wanted."""
        if self._wanted is None or self.held:
            return False
        return self._wanted.spec_hash != self.worker.spec_hash

    @property
    def settled(self) -> bool:
        """Whether what is wanted here is READY, or nothing is to be here."""
        return self.held or (not self.outdated and self.worker.state is WorkerState.READY)

    @property
    def making_room(self) -> bool:
        """Whether the worker here has been asked to end."""
        return self.worker.draining

    @property
    def serving_here(self) -> bool:
        """Whether an engine of this node serves here: replacing it costs capacity for a while."""
        return isinstance(self.worker, Worker) and self.worker.state is WorkerState.READY

    def want(self, pool: str, spec: WorkerSpec | AttachedSpec, drain_s: float) -> None:
        """From the next life on, `spec`; a running worker makes room when `replace` says so."""
        differs = spec != self._wanted
        self._pool, self._wanted, self._drain_s = pool, spec, drain_s
        if not self.outdated:
            self.worker.respec(spec)
        if differs and self.worker.state is WorkerState.FAILED:
            self.replace()

    def hold(self, drain_s: float | None = None) -> None:
        """Drain the worker here, in `drain_s` seconds, the pool's unless given; then start none."""
        self.held = True
        self.worker.drain(self._drain_s if drain_s is None else drain_s)
        self._woken.set()

    def restart(self) -> None:
        """`replace`, and start again what is held."""
        self.held = False
        self.replace()

    def replace(self) -> None:
        """Begin another life soon: drain the worker, or end the wait for the next one."""
        self._failures = 0
        self._restarts.clear()
        self.worker.drain(self._drain_s)
        self._woken.set()

    def retire(self, drain_s: float | None = None, *, leave: bool = False) -> None:
        """Want nothing here any more; `drain_s` seconds to drain, the pool's unless given.

        `leave`: its engine goes on running.
        """
        self._wanted = None
        if leave:
            self.worker.leave()
        self.worker.drain(self._drain_s if drain_s is None else drain_s)
        self._woken.set()

    def moved(self, after: WorkerState) -> None:
        """The worker here has changed its state."""
        now = clock.monotonic()
        if after is WorkerState.READY:
            self._ready_since = now
        elif self._ready_since is not None:
            if now - self._ready_since >= HEALTHY_S:
                self._failures = 0
            self._ready_since = None

    def gpus_free(self, number: int) -> None:
        """So many GPUs are free now: a worker that has failed for lack of them may try again."""
        if 0 < self.worker.gpus_lacking <= number:
            self._woken.set()

    async def run(self) -> None:
        """Live one worker after another; returns when nothing is wanted and nothing is left."""
        while self._wanted is not None:
            if self.held:
                await self._rest()
                continue
            if self._used or self.outdated:
                self.worker = self._new_worker(self._wanted, self.worker)
            self._used = True
            self._woken.clear()
            await self.worker.run()
            failed = self.worker.state is WorkerState.FAILED and not self.held
            if failed and isinstance(self._wanted, WorkerSpec):
                await self._pause(self._wanted.workers)

    async def _rest(self) -> None:
        self.worker.outlook = f"drained by hand: `inferd workers restart {self.id}` starts it"
        self._woken.clear()
        await self._woken.wait()

    def _new_worker(
        self, spec: WorkerSpec | AttachedSpec, previous: WorkerBase | None
    ) -> WorkerBase:
        if isinstance(spec, AttachedSpec):
            return AttachedWorker(self.id, self._pool, spec, self._node, previous)
        return Worker(self.id, self._pool, spec, self._node, previous)

    async def _pause(self, limits: Workers) -> None:
        """Wait for the next life: a growing while, or for ever when there were too many.

        Trying does not make GPUs free: for them the wait is as long as others have them.
        """
        if lacking := self.worker.gpus_lacking:
            self.worker.outlook = f"starts as soon as {lacking} of the GPUs are free"
            await self._woken.wait()
            return
        hour_ago = clock.monotonic() - HOUR_S
        while self._restarts and self._restarts[0] <= hour_ago:
            self._restarts.popleft()
        number = len(self._restarts) + 1
        if number > limits.restarts_per_hour_max:
            self.worker.outlook = (
                f"given up after {number - 1} restarts within an hour: remove the cause, then"
                " restart it or reload a changed configuration"
            )
            if self.worker.last_lines:
                self.worker.outlook += "; the end of its output: " + " | ".join(
                    line.strip()[:LINE_CHARS_MAX] for line in self.worker.last_lines
                )
            log.error("worker %s: %s", self.id, self.worker.outlook, extra={"worker": self.id})
            await self._woken.wait()
            return
        wait_s = self._wait_s(limits)
        self.worker.outlook = (
            f"restart {number} of at most {limits.restarts_per_hour_max} an hour,"
            f" {wait_s:.1f} s after it failed"
        )
        log.info("worker %s: %s", self.id, self.worker.outlook, extra={"worker": self.id})
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._woken.wait()
        self._failures += 1
        self._restarts.append(clock.monotonic())

    def _wait_s(self, limits: Workers) -> float:
        """Doubles with each failure; a random part keeps many workers from starting together."""
        doubled_s = limits.restart_backoff_s * 2.0 ** min(self._failures, DOUBLINGS_MAX)
        return min(doubled_s, limits.restart_backoff_s_max) * self._rng.uniform(0.5, 1.0)
