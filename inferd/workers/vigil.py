"""Keeps watch over one ready worker: takes its signs, asks the watchdog, does what it decides.

Owns the watchdog of this life and the verdict. It kills nothing itself: `Worker` is woken, reads
`condemned`, and ends the life as it ends any other.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from inferd import clock
from inferd.errors import UpstreamError
from inferd.workers import engine
from inferd.workers.client import OK
from inferd.workers.watchdog import (
    FATAL,
    LOOK_S,
    Decision,
    Finding,
    Processes,
    Signs,
    Watchdog,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferd.config.watchdog import Watchdog as Limits
    from inferd.workers.base import WorkerBase
    from inferd.workers.vital_signs import Parts
    from inferd.workers.watchdog import Expectation

log = logging.getLogger(__name__)

SAID: Final = {
    Decision.PART_DIED: "a part of it died",
    Decision.SUSPENDED: "it is stopped",
    Decision.HUNG: "it hangs",
    Decision.STALLED: "it is stalled, busy without getting on",
    Decision.MUTE: "nothing comes out of it although it works",
    Decision.UNREACHABLE: "it answers no probe",
    Decision.UNHEALTHY: "it generates nothing",
    Decision.OVERSIZED: "it has grown too large",
}


class Vigil:
    """Over one worker, from READY to its end. `run` is the service."""

    def __init__(
        self,
        worker: WorkerBase,
        parts: Parts | None,
        limits: Callable[[], Limits],
        expected: Callable[[str], Expectation],
    ) -> None:
        """`parts`: its processes, if they are ours; `expected` is asked by worker id."""
        self.condemned = ""
        """Why the worker must be killed now; empty: it need not."""
        self.outgrown = ""
        """Why it is started again once it has drained; empty: it need not."""
        self._worker = worker
        self._parts = parts
        self._limits = limits
        self._expected = expected
        self._watchdog = Watchdog(clock.monotonic())
        self._asked: asyncio.Task[bool] | None = None

    async def run(self) -> None:
        """Look twice a second until a verdict; then nothing more is to be seen."""
        worker, watchdog = self._worker, self._watchdog
        async with asyncio.TaskGroup() as group:
            while not self.condemned:
                await asyncio.sleep(LOOK_S)
                signs = self._signs()
                limits = self._limits()
                found = watchdog.look(clock.monotonic(), limits, signs)
                if found is None:
                    found = self._health(group, limits, signs)
                metrics = worker.metrics.worker[worker.id]
                metrics.silence_s.set(watchdog.silent_s)
                if self._parts is not None:
                    metrics.resident_bytes.set(signs.processes.resident_bytes)
                if found is not None:
                    self._act(found, limits)
            if self._asked is not None:
                self._asked.cancel()

    def _signs(self) -> Signs:
        worker = self._worker
        debt, loads = worker.client.debt(), worker.loads
        return Signs(
            owed=debt.owed,
            begun=debt.begun,
            heard=debt.heard,
            ranks=None if loads is None else loads.ranks,
            engine_waiting=0 if loads is None else loads.waiting,
            processes=Processes() if self._parts is None else self._parts.look(),
            expected=self._expected(worker.id),
        )

    def _health(self, group: asyncio.TaskGroup, limits: Limits, signs: Signs) -> Finding | None:
        """The one probe that costs a token: never two at a time, and only of an idle worker."""
        if self._asked is None:
            if self._watchdog.wants_health(limits, signs):
                self._asked = group.create_task(self._generates(limits.unanswered_s))
            return None
        if not self._asked.done():
            return None
        good, self._asked = self._asked.result(), None
        return self._watchdog.health(good=good)

    async def _generates(self, limit_s: float) -> bool:
        try:
            status, _ = await self._worker.client.get(engine.HEALTH_PATH, limit_s)
        except UpstreamError:
            return False
        return status == OK

    def _act(self, found: Finding, limits: Limits) -> None:
        worker, decision = self._worker, found.decision
        worker.metrics.worker[worker.id].watchdog[decision].inc()
        fields = {"worker": worker.id, "pool": worker.pool, "decision": str(decision)}
        if decision in {Decision.SUSPECTED, Decision.CLEARED}:
            log.warning("worker %s is %s: %s", worker.id, decision, found.evidence, extra=fields)
            if limits.act == "kill":
                worker.observer.suspected(worker, suspected=decision is Decision.SUSPECTED)
            return
        reason = f"{SAID[decision]}: {found.evidence}"
        log.error("the watchdog on worker %s: %s", worker.id, reason, extra=fields)
        if limits.act == "log":
            return
        if decision in FATAL:
            self.condemned = reason
        else:
            self.outgrown = reason
        worker.wake()
