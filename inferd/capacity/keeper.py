"""Writes down, every few seconds, what the slots of each pool were used for since the last time.

A crash loses what came after the last look; an hour is never told the seconds of another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from inferd.clock import utc_now_us
from inferd.routing.occupancy import Worked
from inferd.storage import capacity
from inferd.storage.rollup import HOUR_US

if TYPE_CHECKING:
    from inferd.metrics import Metrics
    from inferd.routing.scheduler import Scheduler
    from inferd.storage.database import Database

LOOK_S: Final = 10.0
_US: Final = 1_000_000


class CapacityKeeper:
    """`run` is the service; `save` writes what is due at once, for an orderly end."""

    def __init__(
        self, db: Database, metrics: Metrics, schedulers: Callable[[], Iterable[Scheduler]]
    ) -> None:
        self._db = db
        self._metrics = metrics
        self._schedulers = schedulers
        self._before: dict[Scheduler, Worked] = {}
        self._from_us = utc_now_us()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            left_us = HOUR_US - self._from_us % HOUR_US
            await asyncio.sleep(min(LOOK_S, left_us / _US))
            self.save()

    def save(self) -> None:
        """Count what was used since the last time, in the hour in which that was."""
        now = {scheduler: scheduler.snapshot().worked for scheduler in self._schedulers()}
        used = [
            (scheduler.pool, worked.since(self._before.get(scheduler, Worked())))
            for scheduler, worked in now.items()
        ]
        for pool, worked in used:
            seconds = self._metrics.pool[pool].slot_seconds
            seconds["interactive"].inc(worked.interactive_s)
            seconds["batch"].inc(worked.batch_s)
            seconds["idle"].inc(worked.idle_s)
        rows = [(pool, _whole(worked)) for pool, worked in used if worked.worker_s]
        capacity.add(self._db, self._from_us, rows)
        self._before, self._from_us = now, utc_now_us()


def _whole(worked: Worked) -> capacity.Capacity:
    return capacity.Capacity(
        slot_us=round(worked.slot_s * _US),
        interactive_us=round(worked.interactive_s * _US),
        batch_us=round(worked.batch_s * _US),
        worker_us=round(worked.worker_s * _US),
        busy_us=round(worked.busy_s * _US),
    )
