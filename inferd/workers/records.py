"""What is remembered of engines and of bad GPUs, so that the next inferd keeps or ends what runs.

Owns the records: of our own lives, written before a process exists and forgotten when it has ended,
and those found at start. A found engine is taken over by the worker that it was started for, if the
same would be started now; else it is ended, and only then something else is started in its place or
on its GPUs. What no record names is never touched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from inferd.storage import quarantine
from inferd.storage import workers as storage
from inferd.storage.database import Database
from inferd.storage.workers import EngineRecord
from inferd.workers.process import adopt, end_marked
from inferd.workers.process_table import ProcessRecord, boot_id, marked

log = logging.getLogger(__name__)


class Records:
    """`db` None: nothing is remembered beyond this process."""

    def __init__(
        self,
        db: Database | None = None,
        found: Iterable[EngineRecord] = (),
        quarantined: Mapping[str, str] | None = None,
    ) -> None:
        self._db = db
        self.quarantined = quarantined or {}
        """Why GPUs were in quarantine when inferd started, by identity."""
        self._found: dict[str, EngineRecord] = {}
        for record in found:
            if _may_live(record):
                self._found[record.mark] = record
            else:
                self.forget(record)

    def __iter__(self) -> Iterator[EngineRecord]:
        """Those found at start that nobody has taken over or ended yet."""
        return iter(list(self._found.values()))

    def fitting(self, worker_id: str, spec_hash: str, program_hash: str) -> EngineRecord | None:
        """An engine that runs as this worker's would be started now, if there is one."""
        for record in self._found.values():
            same = (record.spec_hash, record.program_hash) == (spec_hash, program_hash)
            process = process_of(record)
            if record.worker_id == worker_id and same and process and process.is_current():
                return record
        return None

    def take(self, record: EngineRecord) -> None:
        """Whoever takes over the engine of this record has to forget it in the end."""
        del self._found[record.mark]

    async def remember(self, record: EngineRecord) -> None:
        """Write it down; returns when that is done. Raises StorageError."""
        if self._db is not None:
            await storage.put(self._db, record)

    def note(self, record: EngineRecord) -> None:
        """Write down what has changed, without waiting for it."""
        if self._db is not None:
            storage.post(self._db, record)

    def forget(self, record: EngineRecord) -> None:
        """Its engine is gone, with all its processes."""
        if self._db is not None:
            storage.forget(self._db, record.mark)

    def judge(self, gpu: str, reason: str | None) -> None:
        """Remember that a GPU is in quarantine; with None, that it is not any more."""
        if self._db is not None:
            quarantine.note(self._db, gpu, reason)

    def of(self, worker_id: str) -> list[EngineRecord]:
        """Those found at start for one worker that are still to be taken over or ended."""
        return [record for record in self._found.values() if record.worker_id == worker_id]

    async def end(self, record: EngineRecord, *, stop_grace_s: float, files: str) -> bool:
        """End an engine that was found; returns when none of its processes runs.

        False, at once: somebody else is at it.

        Raises:
            OSError: it cannot be watched; it stays to be ended.
        """
        if self._found.pop(record.mark, None) is None:
            return False
        try:
            await end_engine(record, stop_grace_s=stop_grace_s, files=files)
        except OSError:
            self._found[record.mark] = record
            raise
        self.forget(record)
        return True


async def end_engine(record: EngineRecord, *, stop_grace_s: float, files: str) -> bool:
    """End all processes of a recorded engine, and no other. Whether there were any."""
    ended = False
    process = process_of(record)
    if process is not None:
        try:
            engine = adopt(process, stop_grace_s=stop_grace_s, files=files)
        except ProcessLookupError:
            pass  # its leader has gone; who is left carries its mark
        else:
            ended = True
            async with engine:
                log.info("worker %s: its engine of an earlier inferd is ended", record.worker_id)
    return bool(await end_marked(record.mark, record.worker_id)) or ended


def process_of(record: EngineRecord) -> ProcessRecord | None:
    """The process that led it; None if it was never seen to exist."""
    if record.pid is None or record.start_ticks is None:
        return None
    return ProcessRecord(
        worker_id=record.worker_id,
        pid=record.pid,
        start_ticks=record.start_ticks,
        boot_id=record.boot_id,
        port=record.port,
        spec_hash=record.spec_hash,
        mark=record.mark,
    )


def with_process(record: EngineRecord, process: ProcessRecord) -> EngineRecord:
    """The record of an engine that is running now."""
    return replace(record, pid=process.pid, start_ticks=process.start_ticks)


def _may_live(record: EngineRecord) -> bool:
    """Whether some process of it runs. Of an earlier boot none does."""
    if record.boot_id != boot_id():
        return False
    process = process_of(record)
    return (process is not None and process.is_current()) or bool(marked(record.mark))
