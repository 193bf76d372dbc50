"""Owns every batch from its creation to its end, and their states; a crash at any point loses none.

A batch has one task, which reads from top to bottom: validate, execute, finalize. What fails for
the disk's or the store's sake is tried again. Lines are fed by `feeder`, made to last by
`committer`. At a start, whatever was not finished goes on from its last checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from inferd.batch.committer import Committer
from inferd.batch.feeder import Feeder
from inferd.batch.intake import copy_input, letting_go, take_input, wrong_input
from inferd.batch.job import InputFile, Job, LineResult
from inferd.batch.jobs import JobState, move
from inferd.batch.line import Answer, Bills, LineLimits, LineServer, Render
from inferd.batch.lines import LineError, Rules
from inferd.batch.outlook import Outlook
from inferd.batch.results import Files, close_rest, recover, store_results
from inferd.batch.spool import Spool
from inferd.batch.validation import Report, validate
from inferd.clock import monotonic, utc_now_us
from inferd.config.batches import Batches
from inferd.errors import Conflict, InferdError, QueueFull, StorageError
from inferd.metrics import Metrics
from inferd.routing.batch_speed import BatchSpeed
from inferd.storage import batches, idempotency
from inferd.storage.batches import BatchRow
from inferd.storage.database import Cursor, Database
from inferd.storage.idempotency import AlreadyMade, Claim

AGAIN_S: Final = 5.0
AGAIN_S_MAX: Final = 60.0
CHECKS_AT_ONCE: Final = 1
LOOK_S: Final = 15.0
"""Between two estimates of when batches will be done."""
FULL_RETRY_S: Final = 30.0

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the runner is given by those above it; each may be asked at any time."""

    files: Files
    answer: Answer
    render: Render
    bills: Bills
    settings: Callable[[], Batches]
    line_bytes_max: int
    try_s: float
    models_of: Callable[[str], Mapping[str, str]]
    """Every name that a team may write as `model`, with its kind."""
    speed_of: Callable[[str, int], BatchSpeed | None]
    """Of a model's pool, with prompts of so many tokens."""


class Runner:
    """`run` once, with `restore` before it. `folder` is where spools live."""

    def __init__(self, db: Database, folder: Path, metrics: Metrics, around: Surroundings) -> None:
        self._db = db
        self._folder = folder
        self._metrics = metrics
        self._around = around
        self._jobs: dict[str, Job] = {}
        self._coming: Counter[str] = Counter()
        """Batches of each team that are being written."""
        self._new: asyncio.Queue[Job] = asyncio.Queue()
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._committer = Committer(db, self._committed)
        self._outlook = Outlook(self._jobs, around.speed_of)
        server = LineServer(around.answer, around.render, self._limits, around.bills)
        self._feeder = Feeder(
            server, self._committer, lambda: around.settings().lines_in_flight_max
        )

    async def restore(self) -> None:
        """Take up what was not finished, and clear away what belongs to no batch."""
        for row in await batches.unfinished(self._db):
            self._add(row)

        def clear() -> None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in self._folder.iterdir():
                if folder.name not in self._jobs:
                    Spool(folder).remove()

        await asyncio.to_thread(clear)

    async def run(self) -> None:
        """The service: ends by cancellation."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._committer.run())
            group.create_task(self._feeder.run())
            group.create_task(self._look_out())
            while True:
                group.create_task(self._live(await self._new.get()))

    def stop(self) -> None:
        """No more lines: inferd is stopping. Those in flight may still end, until `cut`."""
        self._feeder.stop()

    async def cut(self) -> None:
        """Before workers go: no line may take that for its own failure."""
        await self._feeder.cut()

    def refresh_metrics(self) -> None:
        """Set the gauges that are cheaper to read than to keep."""
        for model, lines in self._feeder.in_flight.items():
            self._metrics.batch.in_flight[model].set(lines)

    async def create(self, row: BatchRow, claim: Claim | None = None) -> BatchRow:
        """Take a new batch, or give back the one that `claim` has made before.

        Raises:
            QueueFull: the team has too many that are not finished.
            Conflict: the idempotency key was used for another request.
        """
        full = self._full(row.team)

        def before(cursor: Cursor) -> None:
            if claim is not None:
                idempotency.take(cursor, claim, row.id, row.created_us)
            if full is not None:
                raise full

        self._coming[row.team] += 1
        try:
            kept = await self._around.files.keep(row.team, row.input_file_id)
            with letting_go(kept):
                return await batches.add(
                    self._db, row, before, lambda added: self._add(added, kept)
                )
        except AlreadyMade as made:
            found = await batches.get(self._db, row.team, made.object_id)
            assert found is not None, "batches stay"
            return found
        finally:
            self._coming[row.team] -= 1

    def _full(self, team: str) -> QueueFull | None:
        """Why the team may not have another batch."""
        unfinished_max = self._around.settings().unfinished_per_team_max
        jobs = (job.row for job in self._jobs.values())
        mine = sum(one.team == team and not one.is_finished for one in jobs) + self._coming[team]
        if mine < unfinished_max:
            return None
        return QueueFull(
            f"Team `{team}` has {mine} batches that are not finished; it may have"
            f" {unfinished_max}. Wait for one to end, or cancel one.",
            retry_after_s=FULL_RETRY_S,
        )

    async def cancel(self, row: BatchRow) -> BatchRow:
        """Begin to cancel; again is the same as once. `row` is the batch as it is stored.

        Raises:
            Conflict: it has ended already.
        """
        job = self._jobs.get(row.id)
        if job is not None:
            row = job.row
        if row.status in {JobState.CANCELLING, JobState.CANCELLED}:
            return row
        if row.is_finished or job is None:
            raise Conflict(f"Cannot cancel a batch with status '{row.status}'.")
        moved = move(row, JobState.CANCELLING, utc_now_us())
        moved = job.row = replace(moved, ending=JobState.CANCELLED.value)
        if job.scope is not None:
            job.scope.reschedule(monotonic())
        await batches.update(self._db, moved)
        return moved

    def _add(self, row: BatchRow, kept: InputFile | None = None) -> None:
        job = self._jobs[row.id] = Job(row, Spool(self._folder / row.id))
        job.input = kept
        self._new.put_nowait(job)

    async def _live(self, job: Job) -> None:
        """One batch, until it has ended or inferd stops."""
        pause_s = AGAIN_S
        while True:
            try:
                await self._advance(job)
            except (InferdError, OSError) as error:
                _log.error("%s waits %g s: %s", job.id, pause_s, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, AGAIN_S_MAX)
            except Exception:  # noqa: BLE001 - not the gateway's end, again at each start
                _log.exception("%s stands still until inferd starts again", job.id)
                return
            else:
                self._metrics.batch.finished[job.row.status].inc()
                del self._jobs[job.id]
                return

    async def _advance(self, job: Job) -> None:
        if job.row.status == JobState.VALIDATING and not await self._validate(job):
            return
        if job.row.in_progress_us is not None:
            if not await self._load(job):
                return
            await self._execute(job)
        await self._finalize(job)

    async def _validate(self, job: Job) -> bool:
        """False: it has failed."""
        try:
            async with asyncio.timeout(None) as job.scope:
                await take_input(job, self._around.files)
                async with self._checks:
                    report, size = await self._check(job)
        except TimeoutError as error:
            if job.row.status == JobState.VALIDATING:
                raise StorageError(f"{job.id}: its input could not be read in time.") from error
            return True  # cancelled
        finally:
            job.scope = None
        if job.row.status != JobState.VALIDATING:
            return True
        if not report.errors:
            report = self._within_limits(job, report)
        now_us = utc_now_us()
        if report.errors:
            await self._fail(job, report)
            return False
        row = replace(
            job.row,
            model=report.model,
            total=report.total,
            input_bytes=size,
            prompt_tokens_estimated=report.prompt_tokens,
            output_tokens_estimated=self._outlook.output_tokens(report),
        )
        row = replace(row, estimated_end_us=self._outlook.first(row, now_us))
        job.row = move(row, JobState.IN_PROGRESS, now_us)
        await batches.update(self._db, job.row)
        return True

    async def _check(self, job: Job) -> tuple[Report, int]:
        """A copy of the input, which its owner may delete from now on, and what is wrong in it."""
        row = job.row
        await take_input(job, self._around.files)
        if (error := wrong_input(job)) is not None:
            return Report(0, None, 0, 0, 0, [error.as_json()], 1), 0
        size = await copy_input(job)
        rules = Rules(row.endpoint, self._around.models_of(row.team), self._around.line_bytes_max)
        return await validate(job.spool.input, job.spool.index, rules), size

    def _within_limits(self, job: Job, report: Report) -> Report:
        tokens_max = self._around.settings().queued_tokens_per_team_max
        if tokens_max is None:
            return report
        queued = sum(
            one.row.tokens_estimated for one in self._jobs.values() if one.row.team == job.row.team
        )
        tokens = report.prompt_tokens + self._outlook.output_tokens(report)
        if queued + tokens <= tokens_max:
            return report
        error = LineError(
            "token_limit_exceeded",
            f"Enqueued token limit reached for {report.model} of team `{job.row.team}`. Limit:"
            f" {tokens_max:,} enqueued tokens; {queued:,} are queued, and this batch has"
            f" {tokens:,}. Try again once other batches have completed.",
        )
        return replace(report, errors=[error.as_json()], errors_total=1)

    async def _fail(self, job: Job, report: Report) -> None:
        failed = replace(job.row, errors=report.errors)
        await self._finish(job, move(failed, JobState.FAILED, utc_now_us()))

    async def _load(self, job: Job) -> bool:
        """Take up the checkpoint. False: its input is lost, here and in the store."""
        row = job.row
        if not await asyncio.to_thread(job.spool.holds_input, row.input_bytes, row.total):
            _log.warning("%s: the copy of its input is lost, it is fetched again", row.id)
            report, _ = await self._check(job)
            if report.errors:
                await self._fail(job, report)
                return False
        await recover(self._db, job)
        return True

    async def _execute(self, job: Job) -> None:
        """Until every line is done, the window has ended, or it is cancelled."""
        row = job.row
        if row.ending in {None, JobState.COMPLETED} and row.status != JobState.CANCELLING:
            ends = monotonic() + max(0.0, (row.expires_us - utc_now_us()) / 1e6)
            try:
                async with asyncio.timeout_at(ends) as job.scope:
                    self._feeder.add(job)
                    await job.complete.wait()
            except TimeoutError:
                pass
            finally:
                job.scope = None
                self._feeder.remove(job)
        if job.left:
            await self._end_lines(job)

    async def _end_lines(self, job: Job) -> None:
        """Lines in flight may end within the grace if the batch was cancelled; the rest is cut."""
        grace_s = 0.0
        if job.row.status == JobState.CANCELLING:
            grace_s = self._around.settings().cancel_grace_s
        try:
            async with asyncio.timeout(grace_s):
                await job.idle.wait()
        except TimeoutError:
            for task in list(job.tasks.values()):
                task.cancel()
        await job.idle.wait()

    async def _finalize(self, job: Job) -> None:
        """Results to the store, then the end."""
        row, now_us = job.row, utc_now_us()
        if row.status == JobState.IN_PROGRESS:
            ending = JobState.EXPIRED if job.left else JobState.COMPLETED
            job.row = replace(move(row, JobState.FINALIZING, now_us), ending=ending.value)
            await batches.update(self._db, job.row)
        if job.left and job.row.ending == JobState.COMPLETED:  # the disk had lost results
            job.row = replace(job.row, ending=JobState.EXPIRED.value)
        if job.left:
            await close_rest(job, self._committer)
        await store_results(job, self._around.files, utc_now_us())
        assert job.row.ending is not None
        await self._finish(job, move(job.row, JobState(job.row.ending), utc_now_us()))

    async def _finish(self, job: Job, ended: BatchRow) -> None:
        """From here on it cannot be cancelled, but if its end could not be written."""
        before, job.row = job.row, ended
        try:
            await batches.finish(self._db, ended)
        except StorageError:
            job.row = before
            raise
        job.let_input_go()
        await asyncio.to_thread(job.spool.remove)

    def _limits(self) -> LineLimits:
        return LineLimits(self._around.settings().attempts_max, self._around.try_s)

    def _committed(self, job: Job, results: Sequence[LineResult]) -> None:
        self._outlook.done(job.row.model or "", len(results), monotonic())
        counted = self._metrics.batch
        failed = sum(result.failed for result in results)
        counted.lines[job.row.team, "failed"].inc(failed)
        counted.lines[job.row.team, "completed"].inc(len(results) - failed)
        for result in results:
            if (row := result.usage_row) is not None:
                self._around.bills.billed(row)
                counted.tokens[job.row.team, "prompt"].inc(row.prompt_tokens)
                counted.tokens[job.row.team, "completion"].inc(row.completion_tokens)
        self._feeder.wake()

    async def _look_out(self) -> None:
        """Say when batches should be done, and warn when that is later than they may take."""
        while True:
            await asyncio.sleep(LOOK_S)
            for job in list(self._jobs.values()):
                if job.row.status == JobState.IN_PROGRESS:
                    await self._estimate(job)

    async def _estimate(self, job: Job) -> None:
        row = job.row
        end_us = self._outlook.end_us(job, monotonic(), utc_now_us())
        if end_us is None:
            return
        was_in_time = row.estimated_end_us is None or row.estimated_end_us <= row.expires_us
        if end_us > row.expires_us and was_in_time:
            late_s = (end_us - row.expires_us) / 1e6
            _log.warning("%s should be done %.0f s after its window ends", row.id, late_s)
            self._metrics.batch.slipped.inc()
        job.row = replace(row, estimated_end_us=end_us)
        try:
            await batches.update(self._db, job.row)
        except StorageError as error:
            _log.warning("%s: when it should be done was not written: %s", row.id, error)
