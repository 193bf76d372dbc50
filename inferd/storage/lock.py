"""One process at a time in a state folder: a flock on `inferd.lock`, held as long as it runs.

The lock is the kernel's, so it is free the moment its holder is gone, however it went. What the
file says (process, purpose, admin address) only serves messages and the command line.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from inferd import clock
from inferd.errors import StorageError
from inferd.storage.transaction import translated

LOCK_FILE = "inferd.lock"
SERVE = "inferd serve"
WAIT_S = 5.0
"""How long to wait for another command to finish; a server is not waited for."""
POLL_S = 0.05
_RECORD_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has the folder. `admin` is where a server's admin API listens, once it does."""

    pid: int
    purpose: str
    admin: str | None = None

    def __str__(self) -> str:
        return f"{self.purpose} (process {self.pid})"


class StateDirHeld(StorageError):
    """Another process has the folder; `holder` is None if it has not said who it is."""

    def __init__(self, state_dir: Path, holder: Holder | None) -> None:
        who = "another process" if holder is None else str(holder)
        super().__init__(
            f"{state_dir} is in use by {who}. Stop it, or give this inferd another "
            "[server].state_dir."
        )
        self.holder = holder


class StateLock:
    """A held lock; made by `hold`."""

    def __init__(self, descriptor: int, holder: Holder) -> None:
        self._descriptor = descriptor
        self._holder = holder
        self._write(orjson.dumps(asdict(holder)))

    def publish(self, admin: str) -> None:
        """Say at which `address:port` the admin API listens, for the command line."""
        self._holder = Holder(self._holder.pid, self._holder.purpose, admin)
        self._write(orjson.dumps(asdict(self._holder)))

    def clear(self) -> None:
        self._write(b"")

    def _write(self, record: bytes) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, record, 0)


@asynccontextmanager
async def hold(state_dir: Path, purpose: str) -> AsyncIterator[StateLock]:
    """Make `state_dir` if needed and hold its lock while inside.

    Waits up to `WAIT_S` for another command to finish. Raises StateDirHeld at once if a server has
    it, or after the wait; StorageError if the folder cannot be used.
    """
    path = state_dir / LOCK_FILE
    with translated(str(path)):
        descriptor = _open(path)
    try:
        await _lock(descriptor, state_dir)
        with translated(str(path)):
            lock = StateLock(descriptor, Holder(os.getpid(), purpose))
        try:
            yield lock
        finally:
            lock.clear()
    finally:
        os.close(descriptor)


def running_server(state_dir: Path) -> Holder | None:
    """The server that has the folder now, None if there is none. Waits for nothing, makes nothing.

    Raises StorageError if it cannot be told.
    """
    path = state_dir / LOCK_FILE
    with translated(str(path)):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            return holder if holder is not None and holder.purpose == SERVE else None
        finally:
            os.close(descriptor)
    return None


def _open(path: Path) -> int:
    """The descriptor is not inherited: a worker that outlives us does not keep the lock."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


async def _lock(descriptor: int, state_dir: Path) -> None:
    deadline = clock.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            serving = holder is not None and holder.purpose == SERVE and _runs(holder.pid)
            if serving or clock.monotonic() >= deadline:
                raise StateDirHeld(state_dir, holder) from None
            await asyncio.sleep(POLL_S)
        else:
            return


def _holder(descriptor: int) -> Holder | None:
    """None while the record is empty or being written."""
    try:
        return Holder(**orjson.loads(os.pread(descriptor, _RECORD_BYTES_MAX, 0)))
    except (orjson.JSONDecodeError, TypeError):
        return None


def _runs(pid: int) -> bool:
    """False for a record left by a process that was killed."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
