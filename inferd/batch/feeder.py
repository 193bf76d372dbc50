"""Which line goes next: hands lines to the data path as fast as they are placed, and no faster.

A line that was handed over waits in the pool's queue until a worker has room for batch work. While
`AHEAD` lines of a team wait there, no further one of that team and model follows: so the lines in
flight are as many as what is free holds. Of a team's batches the one due first is fed first; among
teams the pool's queue is fair.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from inferd.batch.committer import RESULTS_MAX, Committer
from inferd.batch.job import Job, Line
from inferd.batch.line import LineServer, WindowOverError
from inferd.clock import monotonic, utc_now_us

AHEAD: Final = 4
READ_AGAIN_S: Final = 5.0
"""A disk that cannot be read is tried again."""
WRITTEN_S_MAX: Final = 5.0
"""Until the last results are on disk, when inferd stops."""

_log: Final = logging.getLogger(__name__)


class Feeder:
    """Owns the tasks of lines. `in_flight_max` is asked each time: lines of one model."""

    def __init__(
        self, server: LineServer, committer: Committer, in_flight_max: Callable[[], int]
    ) -> None:
        self._server = server
        self._committer = committer
        self._in_flight_max = in_flight_max
        self._jobs: dict[str, Job] = {}
        self._waiting: Counter[tuple[str, str]] = Counter()
        """Lines handed over and not placed yet, by model and team."""
        self.in_flight: Counter[str] = Counter()
        """By model."""
        self._serving: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._stopped = False

    def add(self, job: Job) -> None:
        job.feeding = True
        self._jobs[job.id] = job
        self._changed.set()

    def remove(self, job: Job) -> None:
        """No more of its lines; those in flight go on."""
        job.feeding = False
        self._jobs.pop(job.id, None)

    def stop(self) -> None:
        """No more lines at all."""
        self._stopped = True

    async def cut(self) -> None:
        """End the lines in flight as if they had never begun; results that are there are kept."""
        self.stop()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(set(self._serving))
        with suppress(TimeoutError):  # then they are served again
            async with asyncio.timeout(WRITTEN_S_MAX):
                await self._committer.written.wait()

    def wake(self) -> None:
        """Something may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """The service: ends by cancellation, and the lines in flight with it."""
        async with asyncio.TaskGroup() as lines:
            while True:
                await self._changed.wait()
                self._changed.clear()
                self._feed(lines)

    def _feed(self, lines: asyncio.TaskGroup) -> None:
        if self._stopped:
            return
        in_flight_max = self._in_flight_max()
        for job in sorted(self._jobs.values(), key=lambda one: one.row.expires_us):
            model, team = job.row.model or "", job.row.team
            while (
                job.feeding
                and job.has_next
                and self._waiting[model, team] < AHEAD
                and self.in_flight[model] < in_flight_max
                and self._committer.waiting < RESULTS_MAX
            ):
                out = _Out(job, job.take(), (model, team))
                self._waiting[out.who] += 1
                self.in_flight[model] += 1
                task = job.tasks[out.line.place] = lines.create_task(self._serve(out))
                self._serving.add(task)
                # Not in the task's own `finally`: one that is cancelled at once never gets there.
                task.add_done_callback(partial(self._ended, out))

    async def _serve(self, out: _Out) -> None:
        job = out.job
        ends = monotonic() + (job.row.expires_us - utc_now_us()) / 1e6
        try:
            result = await self._server.serve(job, out.line, ends, partial(self._placed, out))
        except WindowOverError:
            job.feeding = False
        except OSError as error:
            _log.error("line %d of %s cannot be read: %s", out.line.number, job.id, error)
            await asyncio.sleep(READ_AGAIN_S)
        except Exception:  # noqa: BLE001 - one line must not end the service of all
            _log.exception("line %d of %s; it stands still", out.line.number, job.id)
            self.remove(job)
        else:
            self._committer.hand_over(job, [result])
            out.handed_over = True

    def _placed(self, out: _Out) -> None:
        if out.waits:
            out.waits = False
            self._waiting[out.who] -= 1
            self._changed.set()

    def _ended(self, out: _Out, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        self._placed(out)
        self.in_flight[out.who[0]] -= 1
        out.job.tasks.pop(out.line.place, None)
        if not out.handed_over:
            out.job.give_back(out.line)
        self._changed.set()


@dataclass(slots=True)
class _Out:
    """A line that was handed over, and for whom it counts: model and team."""

    job: Job
    line: Line
    who: tuple[str, str]
    waits: bool = True
    handed_over: bool = False
