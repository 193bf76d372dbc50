"""Blobs in a folder or in an S3-compatible store, through obstore. Owns the names of objects.

A blob is a run of bytes under an id of ours, in segments of `SEGMENT_BYTES`, each an object that is
put whole: nothing is ever half written, and what a crash left can be listed and deleted. In a
folder a segment is on disk when `put` returns. A failure is a `FileStoreError`, its cause logged.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from obstore.exceptions import BaseError
from obstore.store import LocalStore, MemoryStore, S3Store

from inferd.config.files import Files
from inferd.errors import FileStoreError, StartError

SEGMENT_BYTES: Final = 4_194_304
READ_BYTES: Final = 524_288
"""Of one read: what a reader holds in memory."""
LISTED_MAX: Final = 1_000
DELETED_MAX: Final = 500
TRIES_AGAIN: Final = 3

Store = LocalStore | MemoryStore | S3Store
_FAILURES: Final = (BaseError, OSError)
_log: Final = logging.getLogger(__name__)


class ObjectStore:
    """The objects of one inferd, all under `owner`. `failed` counts failures by operation."""

    def __init__(
        self, store: Store, owner: str, failed: Callable[[str], None] = lambda _: None
    ) -> None:
        self._store = store
        self._owner = owner
        self._failed = failed
        prefix = store.prefix if isinstance(store, LocalStore) else None
        self._folder = None if prefix is None else Path(prefix) / owner

    async def put(self, blob: str, segment: int, data: bytes | bytearray) -> None:
        """Write one segment; all but a blob's last have `SEGMENT_BYTES`.

        Raises:
            FileStoreError: nothing of it is kept.
        """
        key = self._key(blob, segment)
        with self._told("put"):
            await self._store.put_async(key, data, use_multipart=False)
            if self._folder is not None:
                await asyncio.to_thread(_sync, self._folder, self._folder.parent / key)

    async def read(self, blob: str, start: int, stop: int) -> AsyncIterator[bytes]:
        """The bytes from `start` to before `stop`, in pieces of at most `READ_BYTES`.

        Raises:
            FileStoreError: also when the blob ends before `stop`.
        """
        while start < stop:
            segment, offset = divmod(start, SEGMENT_BYTES)
            size = min(READ_BYTES, SEGMENT_BYTES - offset, stop - start)
            with self._told("get"):
                data = bytes(
                    await self._store.get_range_async(
                        self._key(blob, segment), start=offset, length=size
                    )
                )
            if len(data) != size:
                self._failed("get")
                _log.error("%s is shorter in the store than was written", blob)
                raise FileStoreError("The file store has lost a part of this file.")
            yield data
            start += size

    async def delete(self, blob: str, size: int) -> None:
        """Delete every segment of a blob of `size` bytes; those that are gone already are fine."""
        last = max(0, size - 1) // SEGMENT_BYTES
        await self.delete_keys([self._key(blob, segment) for segment in range(last + 1)])

    async def delete_keys(self, keys: list[str]) -> None:
        """Delete objects by the names that `listed` gave."""
        for at in range(0, len(keys), DELETED_MAX):
            some = keys[at : at + DELETED_MAX]
            with self._told("delete"):
                try:
                    await self._store.delete_async(some)
                except FileNotFoundError:  # a folder stops there; the others are still to go
                    await self._delete_each(some)

    async def listed(self) -> AsyncIterator[list[tuple[str, str]]]:
        """Blob and name of every object, page by page."""
        with self._told("list"):
            async for page in self._store.list(self._owner, chunk_size=LISTED_MAX):
                yield [(_blob_of(one["path"]), one["path"]) for one in page]

    def discard_unfinished(self) -> None:
        """Delete what a killed process had begun to write in a folder: no listing shows it.

        Blocks. Only before anything is written.
        """
        if self._folder is not None and self._folder.is_dir():
            for entry in os.scandir(self._folder):
                if "#" in entry.name:
                    Path(entry.path).unlink(missing_ok=True)

    async def _delete_each(self, keys: list[str]) -> None:
        for key in keys:
            try:
                await self._store.delete_async(key)
            except FileNotFoundError:
                continue

    def _key(self, blob: str, segment: int) -> str:
        return f"{self._owner}/{blob}.{segment:05d}"

    @contextmanager
    def _told(self, operation: str) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            self._failed(operation)
            _log.error("file store: %s failed: %s", operation, _first_line(error))
            raise FileStoreError(
                "The file store cannot be used now; nothing was changed. Try again later, or tell "
                "whoever runs it."
            ) from error


def open_store(files: Files, resolve: Callable[[str], Path], environ: Mapping[str, str]) -> Store:
    """The configured store. `resolve` finds a folder of the file, `environ` has the keys.

    A store far away is not asked whether it is there: chat goes on without it.

    Raises:
        StartError: the folder cannot be made or written.
    """
    if not files.remote:
        return _open_folder(resolve(files.store))
    bucket, _, prefix = files.store.removeprefix("s3://").partition("/")
    limit = timedelta(seconds=files.timeout_s)
    keys = {
        "access_key_id": files.access_key_env,
        "secret_access_key": files.secret_key_env,
        "session_token": files.session_token_env,
    }
    config = {name: environ[variable] for name, variable in keys.items() if variable}
    if files.endpoint is not None:
        config["endpoint"] = files.endpoint
    return S3Store(
        bucket,
        prefix=prefix.strip("/") or None,
        config={"region": files.region, **config},  # type: ignore[arg-type]
        client_options={
            "allow_http": (files.endpoint or "").startswith("http://"),
            "timeout": limit,
            "connect_timeout": min(limit, timedelta(seconds=5)),
        },
        retry_config={"max_retries": TRIES_AGAIN, "retry_timeout": limit},
    )


def _open_folder(folder: Path) -> LocalStore:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError("it is not writable")
    except OSError as error:
        reason = error.strerror or error
        raise StartError(
            f"files.store: the folder {folder} cannot be used: {reason}. Choose another one."
        ) from error
    return LocalStore(folder)


def _sync(folder: Path, file: Path) -> None:
    """Bytes and name are on disk, and that of the folder, which the first file has made."""
    for path in (file, folder, folder.parent):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _blob_of(path: str) -> str:
    return path.rpartition("/")[2].rpartition(".")[0]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
