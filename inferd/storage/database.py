"""The one SQLite file. Owns its only write connection, driven by `Database.run()`.

Control writes are awaited and are on disk, synced, when `write` returns. Usage rows are posted: a
crash loses at most the last flush. Each write happens exactly once, also when its awaiter is
cancelled; what cannot be written is logged, counted, and in the end fails the service. Times are
integer microseconds UTC.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from inferd import clock
from inferd.errors import StorageError
from inferd.storage.connection import Connection, ThreadConnection
from inferd.storage.migrate import load_migrations, migrate
from inferd.storage.transaction import Result, storage_error, transact, translated

_log = logging.getLogger(__name__)

T = TypeVar("T")
Cursor = sqlite3.Cursor
Row = sqlite3.Row

BATCH_WRITES_MAX = 256
AWAITED_WAIT_S = 0.005
"""How long a write that somebody awaits may wait for others to share its transaction."""
POSTED_WAIT_S = 0.025
"""The same of a row that nobody awaits: what a crash may lose."""
WRITES_QUEUED_MAX = 65_536
"""Three and a half minutes of the fleet's peak of 300 requests/s, some 60 MB."""
WRITES_BEHIND = 32_768
"""So many wait only if the disk hangs, or if requests come so fast that the loop, which is never
idle then, leaves the writer's thread no turn: what comes next waits for the writer."""
FLUSH_ATTEMPTS_MAX = 6
RETRY_WAIT_S = 0.1
"""Before the second attempt at a flush; doubles, so that the last comes after 3.1 s."""
READERS = 2
WAL_BYTES_KEPT_MAX = 67_108_864


@dataclass(frozen=True, slots=True)
class Flush:
    """What one flush did, for the metrics.

    `lost` rows are gone: in it, or refused since the one before. `retried` ones come again.
    """

    written: int
    lost: int
    retried: int
    duration_s: float


@dataclass(slots=True, eq=False)
class _Write:
    """`future` is None for a posted write."""

    operation: Callable[[Cursor], Any]
    future: asyncio.Future[Any] | None = None
    committed: Callable[[Any], None] | None = None


class Database:
    """The writer's queue and the readers. Made by `open`; `run` must run for writes to happen."""

    def __init__(
        self,
        path: str,
        writer: Connection,
        readers: Sequence[Connection],
        observe: Callable[[Flush], None] | None = None,
    ) -> None:
        self.path = path
        self.rows_lost = 0
        self._rows_lost_told = 0
        self._writer = writer
        self._readers = deque(readers)
        self._observe = observe
        self._queue: deque[_Write] = deque()
        self._due = asyncio.Event()
        """A flush is to be made now."""
        self._timer: asyncio.TimerHandle | None = None
        self._flushed = asyncio.Event()
        """Set at the end of a flush, for who waits in `caught_up`."""
        self._failures = 0
        self._last_error: StorageError | None = None
        self._failed: StorageError | None = None
        self._closed = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path, observe: Callable[[Flush], None] | None = None
    ) -> AsyncIterator[Self]:
        """Open, create or migrate the file at `path`; leaving the scope writes all that is queued.

        Raises StorageError, naming the path and the next step, if it cannot be used.
        """
        async with AsyncExitStack() as stack:
            with translated(str(path)):
                _create_private(path)
                writer = ThreadConnection(path, read_only=False)
                await stack.enter_async_context(writer)
                await writer.call(lambda connection: prepare(connection, str(path)))
                readers = [ThreadConnection(path, read_only=True) for _ in range(READERS)]
                for reader in readers:
                    await stack.enter_async_context(reader)
            async with cls(str(path), writer, readers, observe).flushed_at_end() as database:
                yield database

    @asynccontextmanager
    async def flushed_at_end(self) -> AsyncIterator[Self]:
        """The scope in which writes are taken. Raises StorageError if the last ones are lost."""
        try:
            yield self
        except BaseException:
            with suppress(StorageError):  # logged already; the first failure is the reason to tell
                await self._finish()
            raise
        await self._finish()

    @property
    def queued(self) -> int:
        """Writes that wait for a flush; at most `WRITES_QUEUED_MAX` and one batch."""
        return len(self._queue)

    @property
    def behind(self) -> bool:
        """More waits to be written than there should: await `caught_up` before making more."""
        return len(self._queue) >= WRITES_BEHIND

    async def caught_up(self) -> None:
        """Until it is no longer `behind`, or has failed, which ends the service."""
        while self.behind and self._failed is None:
            self._flushed.clear()
            await self._flushed.wait()

    async def write(
        self, operation: Callable[[Cursor], T], committed: Callable[[T], None] | None = None
    ) -> T:
        """Run `operation(cursor)` in the writer's next transaction and return its result.

        It runs in the writer's thread and must not touch anything else; what it wrote outlives a
        power cut. Once called, the write
        happens even if the caller is cancelled; `committed(result)` runs on the loop right after
        the commit in any case, for what must follow it. Raises what `operation` raises, or
        StorageError; then nothing was stored.
        """
        self._check_open()
        if len(self._queue) >= WRITES_QUEUED_MAX:
            raise StorageError(f"{self.path}: {self.queued} writes wait already; try again.")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._enqueue(_Write(operation, future, committed), AWAITED_WAIT_S)
        return await future

    def post(self, operation: Callable[[Cursor], Any]) -> bool:
        """Run `operation(cursor)` in one of the next transactions; nobody waits for it.

        Never raises for the disk's sake. False: the queue is full, the row is lost, and the
        service ends, since what is not recorded must not be served for long.
        """
        assert not self._closed, f"{self.path} is closed"
        if self._failed is None and len(self._queue) >= WRITES_QUEUED_MAX:
            self._failed = StorageError(
                f"{self.path}: {self.queued} rows wait to be written and no more are kept: the "
                "disk is too slow or hangs. Check it, then start inferd again."
            )
            _log.error("usage rows are lost from now on: %s", self._failed)
            self._due.set()
        if self._failed is not None:
            self.rows_lost += 1  # their sum is logged at the end, not each of many
            return False
        self._enqueue(_Write(operation), POSTED_WAIT_S)
        return True

    async def flush(self) -> None:
        """Wait until everything queued so far is committed. Raises StorageError if it is not."""
        await self.write(_nothing)

    async def read(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> list[Row]:
        """All rows of a SELECT, on a read-only connection. For lists, never on the data path."""
        assert not self._closed, f"{self.path} is closed"
        self._readers.rotate()
        with translated(self.path):
            return await self._readers[0].call(
                lambda connection: connection.execute(sql, parameters).fetchall()
            )

    async def run(self) -> None:
        """The writer service: ends by cancellation, or with StorageError when rows are stuck."""
        while True:
            await self._due.wait()
            await self._flush_batch()
            if self._failures >= FLUSH_ATTEMPTS_MAX and self._failed is None:
                self._failed = StorageError(
                    f"{self.queued} rows could not be written in {self._failures} attempts. "
                    f"{self._last_error}"
                )
            if self._failed is not None:
                self._flushed.set()
                self._refuse_awaited(self._failed)
                raise self._failed
            await self._wait_to_retry()

    async def _flush_batch(self) -> None:
        """One transaction. Its end reaches `_settle` even if this task is cancelled meanwhile."""
        batch = [self._queue.popleft() for _ in range(min(self.queued, BATCH_WRITES_MAX))]
        if not self._queue:
            self._due.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        loop = asyncio.get_running_loop()
        started = clock.monotonic()
        synced = any(write.future is not None for write in batch)

        def work(connection: sqlite3.Connection) -> None:
            results: list[Result] | Exception
            try:
                # In a write-ahead log FULL syncs the log at each commit, NORMAL now and then.
                connection.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
                results = transact(connection, [write.operation for write in batch])
            except Exception as error:  # noqa: BLE001 - told to the awaiters, or retried
                results = error
            loop.call_soon_threadsafe(self._settle, batch, results, started)

        await self._writer.call(work)

    def _settle(
        self, batch: list[_Write], results: list[Result] | Exception, started: float
    ) -> None:
        retried = 0
        self._flushed.set()
        if isinstance(results, Exception):
            retried = self._settle_failed(batch, results)
            written = 0
        else:
            self._failures = 0
            written = sum(result.error is None for result in results)
            for write, result in zip(batch, results, strict=True):
                self._settle_one(write, result)
        if self._observe is not None:
            lost = self.rows_lost - self._rows_lost_told
            self._rows_lost_told = self.rows_lost
            self._observe(Flush(written, lost, retried, clock.monotonic() - started))

    def _settle_one(self, write: _Write, result: Result) -> None:
        error = result.error
        if error is None and write.committed is not None:
            try:
                write.committed(result.value)
            except Exception as fault:  # noqa: BLE001 - our mistake: told to the awaiter
                error = fault
        if isinstance(error, sqlite3.Error):
            error = storage_error(error, self.path)
        if write.future is None or write.future.done():
            if error is not None:
                self._lose(1, error)
        elif error is not None:
            write.future.set_exception(error)
        else:
            write.future.set_result(result.value)

    def _settle_failed(self, batch: list[_Write], cause: Exception) -> int:
        """Nothing was written: tell those who wait, queue the posted rows again."""
        error = storage_error(cause, self.path)
        posted = [write for write in batch if write.future is None]
        for write in batch:
            if write.future is not None:
                self._settle_one(write, Result(error=storage_error(error, self.path)))
        if posted:
            self._failures += 1
            self._last_error = error
            self._queue.extendleft(reversed(posted))
            self._due.set()
            _log.warning(
                "flush %d of %d failed, %d usage rows wait: %s",
                self._failures,
                FLUSH_ATTEMPTS_MAX,
                self.queued,
                error,
            )
        return len(posted)

    async def _finish(self) -> None:
        """Write what is queued, as stubbornly as `run`. Raises StorageError if rows are lost."""
        self._closed = True
        await self._writer.call(_nothing)  # a flush whose task was cancelled is settled after this
        while self._queue:
            await self._flush_batch()
            if self._failures >= FLUSH_ATTEMPTS_MAX:
                break
            await self._wait_to_retry()
        if self._queue:
            assert self._last_error is not None
            self._refuse_awaited(self._last_error)
            self._lose(len(self._queue), self._last_error)
            self._queue.clear()
            raise self._last_error
        if self.rows_lost:
            _log.error("%d rows were lost since start", self.rows_lost)

    async def _wait_to_retry(self) -> None:
        if self._failures:
            await asyncio.sleep(RETRY_WAIT_S * 2.0 ** (self._failures - 1))

    def _enqueue(self, write: _Write, wait_s: float) -> None:
        """To be written within `wait_s` seconds; a timer that ends sooner is left to it."""
        self._queue.append(write)
        if len(self._queue) >= BATCH_WRITES_MAX:
            self._due.set()
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + wait_s
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self._due.set)

    def _check_open(self) -> None:
        if self._failed is not None:
            raise storage_error(self._failed, self.path)
        if self._closed:
            raise StorageError(f"{self.path} is closed: inferd is shutting down.")

    def _refuse_awaited(self, error: StorageError) -> None:
        """Fail every queued write that somebody waits for; posted rows stay for the last try."""
        for write in self._queue:
            if write.future is not None and not write.future.done():
                write.future.set_exception(storage_error(error, self.path))
        self._queue = deque(write for write in self._queue if write.future is None)

    def _lose(self, rows: int, error: Exception) -> None:
        self.rows_lost += rows
        _log.error("%d rows lost (%d since start): %s", rows, self.rows_lost, error)


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Set up the write connection and bring the schema to the newest version."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode not in {"wal", "memory"}:
        raise StorageError(
            f"{path}: this file system cannot hold a write-ahead log (SQLite fell back to "
            f"{mode!r}). Put [server].state_dir on a local disk."
        )
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT_MAX}")
    migrate(connection, path, load_migrations())
    connection.execute("PRAGMA foreign_keys = ON")


def _create_private(path: Path) -> None:
    """Make the file readable by its owner alone: SQLite gives its -wal and -shm the same mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _nothing(_: object) -> None:
    """The operation of a write that only waits for its turn."""
