"""An engine's session is empty on every way out, and nothing outside it is ever touched."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from inferd import clock
from inferd.workers import process_table
from inferd.workers.output_log import follow
from inferd.workers.process import (
    EngineProcess,
    ProcessRecord,
    Program,
    boot_id,
    session_members,
    spawn,
)
from tests.process.worker_rig import until

pytestmark = pytest.mark.real_time(timeout_s=30)

# A leader with a child that was forked twice, and one that left the group; both, and with
# IGNORE the leader too, do not care for SIGTERM. It says READY when all are there.
FAMILY = """
import os, signal, sys, time
if "IGNORE" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
there, tell = os.pipe()
def stay():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(tell, b".")
    time.sleep(600)
if os.fork() == 0:
    if os.fork() == 0:
        stay()
    os._exit(0)
if os.fork() == 0:
    os.setpgid(0, 0)
    stay()
os.wait()
for _ in range(2):
    os.read(there, 1)
print("READY", flush=True)
if "EXIT" in sys.argv:
    sys.exit(3)
time.sleep(600)
"""


def start(
    folder: Path, code: str, *arguments: str, grace_s: float = 5.0, files: str = ""
) -> EngineProcess:
    with (folder / "output").open("ab") as output:
        return spawn(
            Program((sys.executable, "-c", code, *arguments), dict(os.environ), folder, files),
            output=output.fileno(),
            worker_id="chat-1-1",
            port=1,
            spec_hash="hash",
            stop_grace_s=grace_s,
        )


async def said(folder: Path, text: str, times: int = 1) -> None:
    async for line in follow(folder / "output", lines=1_000, follow=True):
        times -= text in line
        if not times:
            return


@contextmanager
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours outside the session, started before: it must live on."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        yield other
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def no_child_is_left() -> bool:
    """No zombie either: whoever was started by us has been reaped."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return True


async def test_a_willing_engine_stops_on_sigterm(tmp_path: Path) -> None:
    code = """
import signal, sys, time
signal.signal(15, lambda *_: sys.exit(7))
print('READY', flush=True)
time.sleep(600)
"""
    async with start(tmp_path, code) as engine:
        await said(tmp_path, "READY")
        assert session_members(engine.record.pid) == [engine.record.pid]
    assert await engine.wait() == 7
    assert session_members(engine.record.pid) == []
    assert no_child_is_left()


@pytest.mark.parametrize("mode", ["", "IGNORE"])
async def test_strays_are_found_and_killed(tmp_path: Path, mode: str) -> None:
    with bystander() as other:
        async with start(tmp_path, FAMILY, mode, grace_s=0.3) as engine:
            await said(tmp_path, "READY")
            assert len(session_members(engine.record.pid)) == 3
        assert session_members(engine.record.pid) == []
        assert await engine.wait() == (-signal.SIGKILL if mode else -signal.SIGTERM)
        assert other.poll() is None


@pytest.mark.parametrize("early", [True, False])
async def test_a_hurried_one_is_not_given_its_grace(tmp_path: Path, early: bool) -> None:
    engine = start(tmp_path, FAMILY, "IGNORE", grace_s=3_600.0)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        await said(tmp_path, "READY")
        if early:
            engine.hurry()
        group.create_task(engine.stop())
        await asyncio.sleep(0)
        engine.hurry()
    assert await engine.wait() == -signal.SIGKILL
    assert session_members(engine.record.pid) == []
    assert no_child_is_left()


async def test_children_of_a_leader_that_crashed_are_killed(tmp_path: Path) -> None:
    async with start(tmp_path, FAMILY, "EXIT", grace_s=0.3) as engine:
        assert await engine.wait() == 3
        assert len(session_members(engine.record.pid)) == 2
    assert session_members(engine.record.pid) == []
    assert no_child_is_left()


async def test_an_exit_is_told_at_once_and_once(tmp_path: Path) -> None:
    told: list[int | None] = []
    async with start(tmp_path, "import time; time.sleep(600)") as engine:
        engine.on_exit = lambda: told.append(engine.exit_status)
        os.kill(engine.record.pid, signal.SIGSEGV)
        assert await engine.wait() == -signal.SIGSEGV
        assert told == [-signal.SIGSEGV]
    assert told == [-signal.SIGSEGV]


async def test_the_number_of_a_dead_leader_is_kept_from_reuse(tmp_path: Path) -> None:
    async with start(tmp_path, "pass") as engine:
        await engine.wait()
        assert engine.record.is_current()  # a zombie: nobody else can get its number
    assert not engine.record.is_current()


async def test_a_cancelled_owner_leaves_nothing(tmp_path: Path) -> None:
    engines: list[EngineProcess] = []

    async def own() -> None:
        async with start(tmp_path, FAMILY, "IGNORE", grace_s=0.3) as engine:
            engines.append(engine)
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        owner = group.create_task(own())
        await asyncio.sleep(0)
        await said(tmp_path, "READY")
        owner.cancel()
    assert session_members(engines[0].record.pid) == []
    assert no_child_is_left()


@pytest.mark.parametrize("between_s", [0.0, 0.01, 0.2])
async def test_a_second_and_third_cancellation_leave_nothing(
    tmp_path: Path, between_s: float
) -> None:
    engines: list[EngineProcess] = []

    async def own() -> None:
        async with start(tmp_path, FAMILY, "IGNORE", grace_s=600.0) as engine:
            engines.append(engine)
            await asyncio.Event().wait()

    start_s = clock.monotonic()
    async with asyncio.TaskGroup() as group:
        owner = group.create_task(own())
        await asyncio.sleep(0)
        await said(tmp_path, "READY")
        for _ in range(3):
            owner.cancel()
            await asyncio.sleep(between_s)
    assert session_members(engines[0].record.pid) == []
    assert no_child_is_left()
    assert clock.monotonic() - start_s < 10


async def test_nothing_is_left_when_the_program_of_the_owner_ends(tmp_path: Path) -> None:
    """The whole program: an unhandled error takes the loop down while an engine runs."""
    code = f"""
import asyncio, sys
sys.path.insert(0, {str(Path.cwd())!r})
from pathlib import Path
from tests.process.test_worker_process import FAMILY, said, start
async def main():
    async with start(Path({str(tmp_path)!r}), FAMILY, "IGNORE", grace_s=0.3) as engine:
        print(engine.record.pid, flush=True)
        await said(Path({str(tmp_path)!r}), "READY")
        raise RuntimeError("the end")
asyncio.run(main())
"""
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await program.communicate()
    assert program.returncode == 1
    assert b"RuntimeError: the end" in err
    assert session_members(int(out)) == []


async def test_a_program_that_cannot_start_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    program = Program(("/no/such/engine",), {}, tmp_path)
    with pytest.raises(FileNotFoundError, match="/no/such/engine"):
        spawn(program, output=1, worker_id="w", port=1, spec_hash="h", stop_grace_s=1)
    assert no_child_is_left()


async def test_an_engine_that_cannot_be_watched_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(_: int) -> int:
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr(os, "pidfd_open", no_descriptor)
    with pytest.raises(OSError, match="Too many open files"):
        start(tmp_path, FAMILY)
    assert no_child_is_left()


async def test_a_record_names_one_process_and_no_heir(tmp_path: Path) -> None:
    async with start(tmp_path, "import time; time.sleep(600)") as engine:
        record = engine.record
        assert record == ProcessRecord(
            worker_id="chat-1-1",
            pid=os.getsid(record.pid),
            start_ticks=record.start_ticks,
            boot_id=boot_id(),
            port=1,
            spec_hash="hash",
        )
        assert record.is_current()
        assert not replace(record, start_ticks=record.start_ticks - 1).is_current()
        assert not replace(record, boot_id="of another boot").is_current()


async def test_a_stranger_with_the_number_is_not_signalled(tmp_path: Path) -> None:
    """Were the number ever somebody else's, the start time would differ: then nothing is sent."""
    code = """
import signal, time
signal.signal(signal.SIGUSR1, lambda *_: print("ALIVE", flush=True))
print("READY", flush=True)
while True:
    time.sleep(600)
"""
    async with start(tmp_path, code, grace_s=0.2) as engine:
        await said(tmp_path, "READY")
        true_record = engine.record
        engine.record = replace(true_record, start_ticks=true_record.start_ticks - 1)
        engine._kill()
        os.kill(true_record.pid, signal.SIGUSR1)
        await said(tmp_path, "ALIVE")
        assert engine.exit_status is None
        engine.record = true_record
    assert engine.exit_status == -signal.SIGTERM


async def test_activity_counts_the_whole_session(tmp_path: Path) -> None:
    code = """
import os, time
os.fork()
end = time.process_time() + 0.3
while time.process_time() < end: pass
with open("/dev/zero", "rb") as zero: zero.read(2_000_000)
os.write(1, b"READY\\n")  # two write here: a line must be one write
time.sleep(600)
"""
    async with start(tmp_path, code) as engine:
        await said(tmp_path, "READY", times=2)
        activity = engine.activity()
        assert activity.cpu_s > 0.5
        assert activity.read_bytes >= 4_000_000
        await asyncio.sleep(0.5)
        assert engine.activity().cpu_s - activity.cpu_s < 0.05


async def test_a_main_thread_that_ended_is_not_the_end_of_its_process(tmp_path: Path) -> None:
    code = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print("READY", flush=True)
ctypes.CDLL(None).syscall(60, 0)
"""
    async with start(tmp_path, code, grace_s=0.1) as engine:
        await said(tmp_path, "READY")
        stat = Path(f"/proc/{engine.record.pid}/stat")
        await until("its main thread has ended", lambda: ") Z " in stat.read_text())
        assert session_members(engine.record.pid) == [engine.record.pid]
    assert await engine.wait() == -signal.SIGTERM
    assert no_child_is_left()


async def test_a_process_that_forks_while_it_is_killed_does_not_get_away(tmp_path: Path) -> None:
    code = """
import os, time
print("READY", flush=True)
while True:
    if os.fork() == 0:
        os.setpgid(0, 0)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            if os.fork() == 0: os._exit(0)
            os.wait()
        os._exit(0)
    os.write(1, b"FORKED\\n")
    time.sleep(0.02)
"""
    async with start(tmp_path, code, grace_s=0.1) as engine:
        await said(tmp_path, "READY")
        await said(tmp_path, "FORKED", times=10)
    assert session_members(engine.record.pid) == []


# Two of them have a file of that kind open each, and the first one has another file.
WITH_FILES = """
import os, sys, time
name = sys.argv[1]
child = os.fork()
mine = open(f"{name}_{'child' if child == 0 else 'leader'}.shm", "w")
if child:
    other = open(f"{os.path.dirname(name)}/other", "w")
os.write(1, b"READY\\n")  # two write here: a line must be one write
time.sleep(600)
"""


@pytest.mark.parametrize("killed", [True, False])
async def test_files_that_a_killed_engine_cannot_remove_are_removed(
    tmp_path: Path, killed: bool
) -> None:
    folder = tmp_path / "shm"
    folder.mkdir()
    begin = str(folder / "loads")
    of_another = folder / "loads_of_another.shm"
    of_another.touch()
    async with start(tmp_path, WITH_FILES, begin, grace_s=0.2, files=begin) as engine:
        await said(tmp_path, "READY", times=2)
        assert len(list(folder.iterdir())) == 4
        if killed:  # the leader alone is gone at first
            engine.note_files()
            for pid in session_members(engine.record.pid):
                os.kill(pid, signal.SIGKILL)
            await engine.wait()
        assert of_another.exists()
    assert sorted(path.name for path in folder.iterdir()) == [of_another.name, "other"]


def test_names_with_parentheses_and_spaces_do_not_confuse(tmp_path: Path) -> None:
    look = process_table.look_at(os.getpid())
    assert look is not None
    odd = tmp_path / "od) d (x"
    odd.symlink_to(sys.executable)
    with subprocess.Popen([odd, "-c", "input()"], stdin=subprocess.PIPE) as child:
        looked = process_table.look_at(child.pid)
        assert looked is not None
        assert looked.group == look.group
        assert looked.start_ticks >= look.start_ticks
        child.communicate(b"\n")
