"""One engine's processes: a session of their own, gone when the scope is left, or handed over.

Owns the session: whoever was started in it is found by its session id, and who has left it by the
mark in its environment; nothing else is ever signalled. A leader of ours is reaped last: until then
nobody else can get its number. One that another inferd started is no child of ours: it is known by
its start time, and followed by a handle. Starting is synchronous, so that no cancellation can fall
between the fork and the owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from inferd import clock
from inferd.workers.process_table import (
    MARK,
    UNKNOWN_STATUS,
    Activity,
    ProcessRecord,
    boot_id,
    bytes_read,
    is_running,
    look_at,
    marked,
    open_files,
    session_members,
)

__all__ = [
    "Activity",
    "EngineProcess",
    "ProcessRecord",
    "Program",
    "adopt",
    "boot_id",
    "end_marked",
    "session_members",
    "spawn",
]

log = logging.getLogger(__name__)

LOOK_S: Final = 0.05
"""Between two looks at whether a signalled session is empty."""
KILL_S_MAX: Final = 10.0
"""A killed process that is still there after so long hangs in the kernel."""
CLOCK_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
ORPHANS_S_MAX: Final = 3.0
"""What a leader has left behind gets this long after a SIGTERM."""


class EngineProcess:
    """A running engine. Use as `async with`: leaving the scope stops it, unless handed over.

    `on_exit` is called once, from the loop, as soon as the leader has ended.
    """

    def __init__(
        self,
        leader: subprocess.Popen[bytes] | None,
        record: ProcessRecord,
        stop_grace_s: float,
        files: str = "",
    ) -> None:
        """`leader`: None if it is no child of ours; `record.pid` is it in any case.

        `files`: how paths begin of files that are removed once the session has ended.

        Raises:
            OSError: it cannot be watched; ProcessLookupError if it is gone.
        """
        self.record = record
        self.on_exit: Callable[[], None] | None = None
        self._leader = leader
        self._stop_grace_s = stop_grace_s
        self._grace: asyncio.Timeout | None = None
        """While a leader that was told to end may do so."""
        self._files_begin = files
        self._files: set[str] = set()
        self._pidfd = os.pidfd_open(record.pid)
        self._ended = asyncio.Event()
        self._status: int | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._leader_ended)

    @property
    def exit_status(self) -> int | None:
        """None while the leader runs; its exit code or negative signal, or `UNKNOWN_STATUS`."""
        return self._status

    def members(self) -> list[int]:
        """Live processes of the session; when there are none, those that carry its mark."""
        # Without its leader the number of a session may be somebody else's by now.
        in_session = session_members(self.record.pid) if self.record.is_current() else []
        return in_session or marked(self.record.mark)

    async def wait(self) -> int:
        """Wait for the leader's end. Its children may outlive it; leaving the scope ends them."""
        await self._ended.wait()
        assert self._status is not None
        return self._status

    def activity(self) -> Activity:
        """Totals over the session's live processes; a process that ends takes its share along."""
        members = self.members()
        looks = [look for pid in members if (look := look_at(pid)) is not None]
        return Activity(
            cpu_s=sum(look.cpu_ticks for look in looks) / CLOCK_TICKS_PER_S,
            read_bytes=sum(bytes_read(pid) for pid in members),
        )

    def note_files(self) -> None:
        """Look which files, of those that it leaves behind, the session holds open now.

        Their names tell nothing of who made them, and nobody can ask once it has been killed.
        """
        if self._files_begin:
            for pid in self.members():
                self._files.update(open_files(pid, self._files_begin))

    def hand_over(self) -> None:
        """Let go of a running engine: from here on nothing is done to it, nor told of it."""
        if self._pidfd >= 0 and self._status is None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def hurry(self) -> None:
        """Kill it without a grace when the scope is left, or at once if that is under way."""
        self._stop_grace_s = 0.0
        if self._grace is not None and not self._grace.expired():
            self._grace.reschedule(clock.monotonic())

    async def stop(self) -> None:
        """SIGTERM, `stop_grace_s` to comply, SIGKILL. Returns when the session is empty.

        The leader alone gets the SIGTERM and ends its children in its own order: hit by it
        directly they would die without giving their memory back. What a leader leaves behind
        gets its own, and less time. A second cancellation skips the waiting, never the killing.
        """
        if self._pidfd < 0:
            return
        try:
            self.note_files()
            if self._status is None:
                signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
                await self._complied()
            if self._status is not None:
                self._signal(signal.SIGTERM)
                await self._emptied(min(self._stop_grace_s, ORPHANS_S_MAX))
        finally:
            self._kill()
            try:
                await self._emptied(KILL_S_MAX)
            finally:
                self._close()

    async def _complied(self) -> None:
        """Until the leader has ended, or its grace has."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._stop_grace_s) as self._grace:
                    await self._ended.wait()
        finally:
            self._grace = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def _leader_ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        if self._leader is None:
            self._status = UNKNOWN_STATUS
        else:
            # WNOWAIT leaves the zombie in place: it keeps the number from being reused.
            result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT)
            assert result is not None
            exited = result.si_code == os.CLD_EXITED
            self._status = result.si_status if exited else -result.si_status
        self._ended.set()
        if self.on_exit is not None:
            self.on_exit()

    def _signal(self, number: signal.Signals) -> None:
        """Send to every live process of it: to the group at once, then to the strays."""
        session = self.record.pid if self.record.is_current() else None
        if session is not None and self._leader is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session, number)
        for pid in self.members():
            look = look_at(pid)
            if look is not None and (self._leader is None or look.group != session):
                _signal_member(pid, self.record, number)

    def _kill(self) -> None:
        # A process may fork between the look and the signal: look again until nobody new is there.
        killed: set[int] = set()
        while fresh := set(self.members()) - killed:
            self._signal(signal.SIGKILL)
            killed |= fresh

    async def _emptied(self, limit_s: float) -> None:
        """Wait until no process of the session runs, at most `limit_s` seconds."""
        deadline = clock.monotonic() + limit_s
        while self.members():
            if clock.monotonic() >= deadline:
                return
            await asyncio.sleep(LOOK_S)

    def _close(self) -> None:
        """Reap the leader. Blocks a moment when a cancellation cut the wait for the killed."""
        left = self.members()
        if left:
            _outlast(left)
            left = self.members()
        if left:
            log.error(
                "worker %s: killed processes hang in the kernel: %s",
                self.record.worker_id,
                ", ".join(map(str, left)),
            )
        else:
            self._remove_files()
        if self._status is None:
            self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        status = UNKNOWN_STATUS if self._leader is None else self._leader.poll()
        if self._status is None and status is not None:
            self._status = status
            self._ended.set()

    def _remove_files(self) -> None:
        for name in self._files:
            try:
                Path(name).unlink(missing_ok=True)
            except OSError as error:
                log.warning(
                    "worker %s: %s cannot be removed: %s", self.record.worker_id, name, error
                )


def _signal_member(pid: int, record: ProcessRecord, number: signal.Signals) -> None:
    """Signal one process by a handle, after making sure that the handle is of this engine."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        in_session = os.getsid(pid) == record.pid and record.is_current()
        if in_session or pid in marked(record.mark):
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def _outlast(pids: list[int]) -> None:
    """Wait for killed processes without the loop, until none has ended for 1 s."""
    handles: set[int] = set()
    poll = select.poll()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            handles.add(handle)
            poll.register(handle, select.POLLIN)
    try:
        open_handles = set(handles)
        while open_handles and (ended := poll.poll(1_000)):
            for handle, _ in ended:
                poll.unregister(handle)
                open_handles.discard(handle)
    finally:
        for handle in handles:
            os.close(handle)


@dataclass(frozen=True, slots=True)
class Program:
    """What to start: arguments, the whole environment, working folder."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    files: str = ""
    """How the paths begin of files that it makes, holds open and does not remove."""


def spawn(
    program: Program,
    *,
    output: int,
    worker_id: str,
    port: int,
    spec_hash: str,
    stop_grace_s: float,
    mark: str = "",
) -> EngineProcess:
    """Start an engine in its own session; `output` is the descriptor it writes to by itself.

    `mark` is in the environment of each of its processes.

    Raises:
        OSError: the program cannot be started, or not be watched; then nothing of it is left.
    """
    leader = subprocess.Popen(
        program.arguments,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=_with_mark(program.environment, mark),
        cwd=program.folder,
        start_new_session=True,
    )
    try:
        look = look_at(leader.pid)
        assert look is not None, "an unreaped child has its entry in /proc"
        record = ProcessRecord(
            worker_id=worker_id,
            pid=leader.pid,
            start_ticks=look.start_ticks,
            boot_id=boot_id(),
            port=port,
            spec_hash=spec_hash,
            mark=mark,
        )
        return EngineProcess(leader, record, stop_grace_s, program.files)
    except BaseException:
        os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()
        raise


def adopt(record: ProcessRecord, *, stop_grace_s: float, files: str = "") -> EngineProcess:
    """Own the engine of this record, which another inferd has started.

    Raises:
        ProcessLookupError: its leader is gone, or its number is somebody else's now.
        OSError: it cannot be watched.
    """
    process = EngineProcess(None, record, stop_grace_s, files)
    # Looked at while the handle is open: from here on it is the same process, or none.
    if record.is_current() and is_running(record.pid):
        return process
    process.hand_over()
    raise ProcessLookupError(f"process {record.pid} is not the engine of {record.worker_id}")


async def end_marked(mark: str, worker_id: str) -> int:
    """Kill the processes that carry a mark, of an engine whose leader has gone. How many it were.

    Their leader gave them no time either: nothing is lost by a SIGKILL.
    """
    found = marked(mark)
    record = ProcessRecord(worker_id, 0, -1, "", 0, "", mark)
    deadline = clock.monotonic() + KILL_S_MAX
    left = found
    while left and clock.monotonic() < deadline:
        for pid in left:
            _signal_member(pid, record, signal.SIGKILL)
        await asyncio.sleep(LOOK_S)
        left = marked(mark)
    if left:
        log.error("worker %s: killed processes hang in the kernel: %s", worker_id, left)
    return len(found)


def _with_mark(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """With the mark, and with what keeps an engine from writing its title over it."""
    return {**environment, MARK: mark, "SPT_NOENV": "1"} if mark else dict(environment)
