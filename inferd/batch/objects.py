"""Files: bytes in the object store, rows in the database, and what each team keeps.

Owns the order in which both change: bytes first and then the row, the row first and then the bytes.
So a crash leaves bytes without a row at most, and the sweep deletes those. A blob that is being
written or read is never swept. Quotas are claimed while bytes arrive, so uploads at the same time
cannot pass them together.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from inferd.batch.kept_file import KeptFile
from inferd.clock import monotonic, utc_now_us
from inferd.config.files import Files
from inferd.errors import (
    BodyTooLarge,
    FileQuotaExceeded,
    FileStoreError,
    InvalidBody,
    QueueFull,
    StorageError,
)
from inferd.metrics import Metrics
from inferd.storage import files, uploads
from inferd.storage.database import Cursor, Database
from inferd.storage.files import Blobs, FileRow, Held, new_file_id
from inferd.storage.object_store import SEGMENT_BYTES, ObjectStore

EXPIRY_LOOK_S: Final = 60.0
ORPHANS_LOOK_S: Final = 3_600.0
EXPIRED_MAX: Final = 256
"""Rows that one write deletes."""

_log: Final = logging.getLogger(__name__)


class Incoming:
    """Bytes of one team on their way into a blob. Made by `FileStore.incoming`."""

    def __init__(
        self,
        objects: ObjectStore,
        blob: str,
        team: str,
        claim: Callable[[str, int], None],
        bytes_max: int | None,
    ) -> None:
        self.blob = blob
        self.team = team
        self.size = 0
        self.claimed = 0
        self.handed_over = False
        """A row that refers to the blob may be on its way: the sweep decides, nobody else."""
        self._objects = objects
        self._claim = claim
        self._bytes_max = bytes_max
        self._segment = 0
        self._buffer = bytearray()

    async def write(self, data: bytes) -> None:
        """Take the next bytes; waits while the store is slower than the client.

        Raises:
            BodyTooLarge, FileQuotaExceeded: before the bytes over the limit are kept.
            FileStoreError: the store failed.
        """
        self.size += len(data)
        if self._bytes_max is not None:
            if self.size > self._bytes_max:
                raise BodyTooLarge(
                    f"The file is too large. Expected at most {self._bytes_max} bytes."
                )
            self._claim(self.team, len(data))
            self.claimed += len(data)
        self._buffer += data
        while len(self._buffer) >= SEGMENT_BYTES:
            await self._put(SEGMENT_BYTES)

    async def finish(self) -> None:
        """Everything is in the store. Raises InvalidBody if there was nothing."""
        if not self.size:
            raise InvalidBody("The file is empty.")
        if self._buffer:
            await self._put(len(self._buffer))

    async def _put(self, size: int) -> None:
        data = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        await self._objects.put(self.blob, self._segment, data)
        self._segment += 1


class FileStore:
    """The files of all teams. `load` first; `run` is the sweep."""

    def __init__(
        self,
        db: Database,
        objects: ObjectStore,
        *,
        limits: Callable[[], Files],
        bytes_max_of: Callable[[str], int | None],
        metrics: Metrics,
    ) -> None:
        """`limits`: as configured now. `bytes_max_of`: a team's own quota, if it has one."""
        self.db = db
        self._objects = objects
        self._limits = limits
        self._bytes_max_of = bytes_max_of
        self.metrics = metrics
        self._held: dict[str, Held] = {}
        self._claimed: Counter[str] = Counter()
        self._busy: Counter[str] = Counter()
        """Blobs that are being written or read, by how many."""
        self._transfers = 0

    async def load(self) -> None:
        """What is kept already; remnants of a killed process are deleted."""
        await asyncio.to_thread(self._objects.discard_unfinished)
        self._held = await files.held(self.db)
        for team in self._held:
            self._show(team)

    @property
    def limits(self) -> Files:
        return self._limits()

    def held(self, team: str) -> Held:
        """What a team keeps, without what is on its way."""
        return self._held.get(team, Held())

    def check_room(self, team: str, size: int = 0) -> None:
        """Raises FileQuotaExceeded if the team may not have another file, of so many bytes."""
        files_max = self.limits.team_files_max
        if self.held(team).files >= files_max:
            raise FileQuotaExceeded(
                f"Your team keeps {files_max} files already, as many as it may. Delete some first."
            )
        self._check_bytes(team, size)

    @contextmanager
    def transfer(self) -> Iterator[None]:
        """A place among the uploads and downloads. Raises QueueFull."""
        if self._transfers >= self.limits.transfers_max:
            raise QueueFull("Too many files are being transferred. Try again.", retry_after_s=1)
        self._transfers += 1
        try:
            yield
        finally:
            self._transfers -= 1

    @asynccontextmanager
    async def incoming(
        self, team: str, *, prefix: str = "blob", bytes_max: int | None = None
    ) -> AsyncIterator[Incoming]:
        """A scope in which a blob is written; what no row refers to at its end is deleted.

        `bytes_max`: its largest size, which also makes it count against the quota. None: neither.
        """
        blob = f"{prefix}_{secrets.token_hex(16)}"
        incoming = Incoming(self._objects, blob, team, self._claim, bytes_max)
        with self._in_use([blob]):
            try:
                yield incoming
            finally:
                self._claimed[team] -= incoming.claimed
                if not incoming.handed_over:
                    with suppress(FileStoreError):  # told; the sweep tries again
                        await self._objects.delete(blob, incoming.size)

    async def add(
        self,
        incoming: Incoming,
        filename: str,
        purpose: str,
        expires_us: int | None,
        also: Callable[[Cursor, FileRow], object] | None = None,
        created_us: int | None = None,
    ) -> FileRow:
        """Make a file of what has arrived. `also` writes in the same transaction.

        `created_us`: the moment from which it expires, if not this one.

        Raises:
            InvalidBody: nothing arrived. FileStoreError, StorageError: the file is not there.
        """
        await incoming.finish()
        now_us = utc_now_us() if created_us is None else created_us
        file = FileRow(
            id=new_file_id(now_us),
            team=incoming.team,
            filename=filename,
            purpose=purpose,
            bytes=incoming.size,
            blobs=((incoming.blob, incoming.size),),
            created_us=now_us,
            expires_us=expires_us,
        )
        beside = (lambda cursor: also(cursor, file)) if also is not None else None
        with handing_over(incoming):
            return await files.insert(self.db, file, beside, self._added)

    async def add_from_path(
        self,
        team: str,
        path: Path,
        filename: str,
        purpose: str,
        expires_us: int | None,
        also: Callable[[Cursor, FileRow], object] | None = None,
    ) -> FileRow:
        """Make a file of a local one, whatever the quota says. `also`: see `add`.

        Raises:
            InvalidBody: the local file is empty. FileStoreError, StorageError, OSError.
        """
        async with self.incoming(team) as incoming:
            with await asyncio.to_thread(path.open, "rb") as local:
                while data := await asyncio.to_thread(local.read, SEGMENT_BYTES):
                    await incoming.write(data)
            return await self.add(incoming, filename, purpose, expires_us, also)

    async def keep(self, team: str, file_id: str) -> KeptFile | None:
        """The team's file; its bytes stay until it is let go, whoever deletes it. None: unknown."""
        file = await files.get(self.db, team, file_id)
        if file is None:
            return None
        kept = KeptFile(file, self.stream, self._in_use([blob for blob, _ in file.blobs]))
        try:
            if await files.get(self.db, team, file_id) is not None:
                return kept
        except BaseException:
            kept.let_go()
            raise
        kept.let_go()  # deleted before its bytes were kept
        return None

    async def stream(self, blobs: Blobs, start: int, stop: int) -> AsyncGenerator[bytes]:
        """The bytes from `start` to before `stop` of blobs in a row; they stay until the end.

        Raises:
            FileStoreError: the store failed.
        """
        with self._in_use([blob for blob, _ in blobs]):
            for blob, size in blobs:
                if start < size and stop > 0:
                    async for data in self._objects.read(blob, max(0, start), min(size, stop)):
                        yield data
                start, stop = start - size, stop - size

    async def delete(self, team: str, file_id: str) -> bool:
        """Delete the team's file; False if it has none of that id."""
        gone = await files.delete(self.db, team, file_id, self._removed)
        await self._discard(file.blobs for file in gone)
        return bool(gone)

    async def discard(self, blobs: Blobs) -> None:
        """Delete blobs that no row refers to any more."""
        await self._discard([blobs])

    def count(self, team: str, *, size: int = 0, number: int = 0) -> None:
        """A team keeps so much more, or less. Called when the rows that say so are committed."""
        before = self.held(team)
        self._held[team] = Held(before.bytes + size, before.files + number)
        self._show(team)

    async def run(self) -> None:
        """The sweep: deletes what has expired, and what a crash or a failed deletion left."""
        orphans_at = monotonic()
        while True:
            try:
                await self.expire()
                if monotonic() >= orphans_at:
                    await self.sweep()
                    orphans_at = monotonic() + ORPHANS_LOOK_S
            except (FileStoreError, StorageError) as error:
                _log.warning("the sweep of files goes on later: %s", error.message)
            await asyncio.sleep(EXPIRY_LOOK_S)

    async def expire(self) -> None:
        """Delete what has expired. Raises FileStoreError, StorageError."""
        now_us, more = utc_now_us(), True
        while more:
            gone = await files.expire(self.db, now_us, EXPIRED_MAX, self._removed)
            await self._discard(file.blobs for file in gone)
            parts = await uploads.expire(self.db, now_us, EXPIRED_MAX, self._upload_expired)
            await self._discard([part.blobs for part in parts])
            more = EXPIRED_MAX in {len(gone), len(parts)}

    async def sweep(self) -> int:
        """Delete the objects that nothing refers to; how many. Raises FileStoreError."""
        swept = 0
        async for page in self._objects.listed():
            # In this order: a blob becomes a row's and only then stops being busy.
            busy = set(self._busy)
            await self.db.flush()
            used = await files.used_blobs(self.db, {blob for blob, _ in page})
            orphans = [key for blob, key in page if blob not in used | busy | set(self._busy)]
            await self._objects.delete_keys(orphans)
            swept += len(orphans)
        if swept:
            _log.warning("%d objects of no file were deleted from the file store", swept)
            self.metrics.file_orphans_removed.inc(swept)
        return swept

    async def _discard(self, gone: Iterable[Blobs]) -> None:
        """Best effort: what stays is swept later. What is still being read stays as well."""
        for blobs in gone:
            for blob, size in blobs:
                if blob not in self._busy:
                    with suppress(FileStoreError):  # told
                        await self._objects.delete(blob, size)

    def _claim(self, team: str, size: int) -> None:
        self._check_bytes(team, size)
        self._claimed[team] += size

    def _check_bytes(self, team: str, size: int) -> None:
        bytes_max = self._bytes_max_of(team) or self.limits.team_bytes_max
        held = self.held(team).bytes
        if held + self._claimed[team] + size > bytes_max:
            raise FileQuotaExceeded(
                f"Your team may keep {bytes_max} bytes of files and keeps {held} already. Delete "
                "some first."
            )

    @contextmanager
    def _in_use(self, blobs: list[str]) -> Iterator[None]:
        self._busy.update(blobs)
        try:
            yield
        finally:
            for blob in blobs:
                self._busy[blob] -= 1
                if not self._busy[blob]:
                    del self._busy[blob]

    def _added(self, file: FileRow) -> None:
        self.count(file.team, size=file.bytes, number=1)

    def _removed(self, gone: list[FileRow]) -> None:
        for file in gone:
            self.count(file.team, size=-file.bytes, number=-1)

    def _upload_expired(self, gone: list[uploads.Ended]) -> None:
        for upload in gone:
            self.count(upload.team, size=-sum(size for _, size in upload.blobs), number=-1)

    def _show(self, team: str) -> None:
        self.metrics.file_bytes[team].set(self.held(team).bytes)


@contextmanager
def handing_over(incoming: Incoming) -> Iterator[None]:
    """Around the write of a row that refers to the blob.

    The write happens even if the one who waits for it is cancelled, so only its failure gives the
    blob back.
    """
    incoming.handed_over = True
    try:
        yield
    except Exception:
        incoming.handed_over = False
        raise
