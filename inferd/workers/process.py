"""One engine's processes: started in a session of their own, and gone when the scope is left.

Owns the session: whoever was started in it, also after being forked twice or having left the
group, is found by its session id and killed; nothing outside it is ever signalled. The leader is
reaped last: until then its number cannot be given to anybody else, so a kill cannot hit a
stranger, and its start time is compared all the same. Starting is synchronous, so that no
cancellation can fall between the fork and the owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from inferd import clock

log = logging.getLogger(__name__)

PROC: Final = Path("/proc")
LOOK_S: Final = 0.05
"""Between two looks at whether a signalled session is empty."""
KILL_S_MAX: Final = 10.0
"""A killed process that is still there after so long hangs in the kernel."""
CLOCK_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
ORPHANS_S_MAX: Final = 3.0
"""What a leader has left behind gets this long after a SIGTERM."""
ENDED: Final = frozenset("ZX")
"""Process states of a main thread that runs no more; another thread of it still may."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Which process leads a worker's session. Equal start and boot: the same process, not a heir.

    `pid` is also the number of its group and session. `start_ticks` is the kernel's start time,
    in clock ticks since the boot named by `boot_id`.
    """

    worker_id: str
    pid: int
    start_ticks: int
    boot_id: str
    port: int
    spec_hash: str

    def is_current(self) -> bool:
        """Whether the process of this record still has its number (also as a zombie)."""
        look = _look(self.pid)
        started = None if look is None else look.start_ticks
        return started == self.start_ticks and self.boot_id == boot_id()


@dataclass(frozen=True, slots=True)
class Activity:
    """What a session has done so far: processor seconds and bytes read by its live processes."""

    cpu_s: float
    read_bytes: int


@dataclass(frozen=True, slots=True)
class _Look:
    running: bool
    group: int
    cpu_ticks: int
    start_ticks: int


def boot_id() -> str:
    """The kernel's name for this boot: process numbers and times mean nothing beyond it."""
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def session_members(session: int) -> list[int]:
    """Live processes of a session, the leader included. Zombies are not counted."""
    members: list[int] = []
    for name in os.listdir(PROC):  # noqa: PTH208 - Path objects for every process are slow
        if not name.isdigit():
            continue
        pid = int(name)
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) != session:
                continue
            look = _look(pid)
            if look is not None and look.running:
                members.append(pid)
    return members


def _look(pid: int) -> _Look | None:
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, so the fields are counted from its end on.
    fields = stat.rpartition(")")[2].split()
    return _Look(
        running=fields[0] not in ENDED or int(fields[17]) > 1,
        group=int(fields[2]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start_ticks=int(fields[19]),
    )


def _bytes_read(pid: int) -> int:
    try:
        counters = (PROC / str(pid) / "io").read_text(encoding="ascii")
    except OSError:
        return 0
    values = dict(line.split(": ") for line in counters.splitlines())
    # Bytes asked for by read() and bytes fetched from storage: mapped weights show in the latter.
    return int(values["rchar"]) + int(values["read_bytes"])


class EngineProcess:
    """A running engine. Use as `async with`: leaving the scope stops the whole session.

    `on_exit` is called once, from the loop, as soon as the leader has ended.
    """

    def __init__(
        self,
        leader: subprocess.Popen[bytes],
        record: ProcessRecord,
        stop_grace_s: float,
        files: str = "",
    ) -> None:
        """`files`: how paths begin of files that are removed once the session has ended."""
        self.record = record
        self.on_exit: Callable[[], None] | None = None
        self._leader = leader
        self._stop_grace_s = stop_grace_s
        self._files_begin = files
        self._files: set[str] = set()
        self._pidfd = os.pidfd_open(leader.pid)
        self._ended = asyncio.Event()
        self._status: int | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._leader_ended)

    @property
    def exit_status(self) -> int | None:
        """None while the leader runs; its exit code, or the negative number of its signal."""
        return self._status

    async def wait(self) -> int:
        """Wait for the leader's end. Its children may outlive it; leaving the scope ends them."""
        await self._ended.wait()
        assert self._status is not None
        return self._status

    def activity(self) -> Activity:
        """Totals over the session's live processes; a process that ends takes its share along."""
        members = session_members(self.record.pid)
        looks = [look for pid in members if (look := _look(pid)) is not None]
        return Activity(
            cpu_s=sum(look.cpu_ticks for look in looks) / CLOCK_TICKS_PER_S,
            read_bytes=sum(_bytes_read(pid) for pid in members),
        )

    def note_files(self) -> None:
        """Look which files, of those that it leaves behind, the session holds open now.

        Their names tell nothing of who made them, and nobody can ask once it has been killed.
        """
        if self._files_begin:
            for pid in session_members(self.record.pid):
                self._files.update(_open_files(pid, self._files_begin))

    def hurry(self) -> None:
        """It would not hear a SIGTERM: when the scope is left, kill it without a grace."""
        self._stop_grace_s = 0.0

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
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._stop_grace_s):
                        await self._ended.wait()
            if self._status is not None:
                self._signal(signal.SIGTERM)
                await self._emptied(min(self._stop_grace_s, ORPHANS_S_MAX))
        finally:
            self._kill()
            try:
                await self._emptied(KILL_S_MAX)
            finally:
                self._close()

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
        # WNOWAIT leaves the zombie in place: it keeps the number of the session from being reused.
        result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT)
        assert result is not None
        self._status = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        self._ended.set()
        if self.on_exit is not None:
            self.on_exit()

    def _signal(self, number: signal.Signals) -> None:
        """Send to every live process of the session: to the group at once, then to the strays."""
        if not self.record.is_current():
            return
        session = self.record.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session, number)
        for pid in session_members(session):
            look = _look(pid)
            if look is not None and look.group != session:
                _signal_member(pid, session, number)

    def _kill(self) -> None:
        # A process may fork between the look and the signal: look again until nobody new is there.
        killed: set[int] = set()
        while fresh := set(session_members(self.record.pid)) - killed:
            self._signal(signal.SIGKILL)
            killed |= fresh

    async def _emptied(self, limit_s: float) -> None:
        """Wait until no process of the session runs, at most `limit_s` seconds."""
        deadline = clock.monotonic() + limit_s
        while session_members(self.record.pid):
            if clock.monotonic() >= deadline:
                return
            await asyncio.sleep(LOOK_S)

    def _close(self) -> None:
        """Reap the leader. Blocks a moment when a cancellation cut the wait for the killed."""
        left = session_members(self.record.pid)
        if left:
            left = _outlast(left, self.record.pid)
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
        status = self._leader.poll()
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


def _open_files(pid: int, begin: str) -> Iterator[str]:
    """Paths of the files that a process has open and that begin so."""
    try:
        descriptors = list((PROC / str(pid) / "fd").iterdir())
    except OSError:
        return  # it has just ended
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            name = str(descriptor.readlink())
            if name.startswith(begin):
                yield name


def _signal_member(pid: int, session: int, number: signal.Signals) -> None:
    """Signal one process by a handle, after making sure that the handle is of this session."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if os.getsid(pid) == session:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def _outlast(pids: list[int], session: int) -> list[int]:
    """Wait for killed processes without the loop; the pids that are left after 1 s of no exit."""
    handles: dict[int, int] = {}
    poll = select.poll()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            handles[handle] = pid
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
    return session_members(session)


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
) -> EngineProcess:
    """Start an engine in its own session; `output` is the descriptor it writes to by itself.

    Raises:
        OSError: the program cannot be started, or not be watched; then nothing of it is left.
    """
    leader = subprocess.Popen(
        program.arguments,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=dict(program.environment),
        cwd=program.folder,
        start_new_session=True,
    )
    try:
        look = _look(leader.pid)
        assert look is not None, "an unreaped child has its entry in /proc"
        record = ProcessRecord(
            worker_id=worker_id,
            pid=leader.pid,
            start_ticks=look.start_ticks,
            boot_id=boot_id(),
            port=port,
            spec_hash=spec_hash,
        )
        return EngineProcess(leader, record, stop_grace_s, program.files)
    except BaseException:
        os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()
        raise
