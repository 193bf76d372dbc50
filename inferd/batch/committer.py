"""Makes results of lines last: spool first, synced; then the checkpoint with the ledger rows.

Owns the ends of all spools. Many results share a sync. What cannot be written is tried again until
it can: its lines stay out, so no more than are in flight wait for a full disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from inferd.batch.job import Job, LineResult
from inferd.errors import StorageError
from inferd.storage.batches import LineDone, record_lines
from inferd.storage.database import Database

RETRY_S: Final = 1.0
RESULTS_MAX: Final = 512
"""In one checkpoint."""

_log: Final = logging.getLogger(__name__)


class Committer:
    """`committed(job, results)` is called on the loop after each checkpoint."""

    def __init__(
        self, db: Database, committed: Callable[[Job, Sequence[LineResult]], None]
    ) -> None:
        self._db = db
        self._committed = committed
        self._waiting: list[tuple[Job, LineResult]] = []
        self._arrived = asyncio.Event()
        self.written = asyncio.Event()
        """Nothing waits."""
        self.written.set()

    @property
    def waiting(self) -> int:
        """Results that are not on disk yet."""
        return len(self._waiting)

    def hand_over(self, job: Job, results: Sequence[LineResult]) -> None:
        """From here on they will be done, whoever is cancelled meanwhile."""
        self._waiting.extend((job, result) for result in results)
        self._arrived.set()
        self.written.clear()

    async def run(self) -> None:
        """The service: ends by cancellation; what was not checkpointed is served again."""
        while True:
            await self._arrived.wait()
            job = self._waiting[0][0]
            results = [result for one, result in self._waiting if one is job][:RESULTS_MAX]
            try:
                await self._commit(job, results)
            except (StorageError, OSError) as error:
                _log.error("results of %s cannot be written, trying again: %s", job.id, error)
                await asyncio.sleep(RETRY_S)
                continue
            taken = set(map(id, results))
            self._waiting = [pair for pair in self._waiting if id(pair[1]) not in taken]
            if not self._waiting:
                self._arrived.clear()
                self.written.set()

    async def _commit(self, job: Job, results: Sequence[LineResult]) -> None:
        row, spool = job.row, job.spool
        ends = {False: row.output_bytes, True: row.error_bytes}
        parts: dict[bool, list[bytes]] = {False: [], True: []}
        lines = []
        for result in results:
            ends[result.failed] += len(result.data)
            parts[result.failed].append(result.data)
            end = ends[result.failed]
            lines.append(LineDone(result.line.number, result.failed, end, result.usage_row))

        def append() -> None:
            spool.append(spool.output, row.output_bytes, b"".join(parts[False]))
            spool.append(spool.errors, row.error_bytes, b"".join(parts[True]))

        await asyncio.to_thread(append)
        job.counted(await record_lines(self._db, job.id, lines, ends[False], ends[True]))
        for result in results:
            job.done(result.line)
        self._committed(job, results)
