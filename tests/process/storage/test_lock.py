from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from inferd.storage import lock
from inferd.storage.lock import SERVE, Holder, StateDirHeld, hold

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[3]
HOLDER = """
import asyncio, sys
from pathlib import Path
from inferd.storage.lock import hold


async def main():
    async with hold(Path(sys.argv[1]), sys.argv[2]) as lock:
        lock.publish("127.0.0.1:4711")
        print("held", flush=True)
        sys.stdin.read()
asyncio.run(main())
"""


@asynccontextmanager
async def held_elsewhere(
    state_dir: Path, purpose: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOLDER,
        str(state_dir),
        purpose,
        stdin=PIPE,
        stdout=PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"held\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_second_server_is_told_who_has_the_folder(tmp_path: Path) -> None:
    async with held_elsewhere(tmp_path, SERVE) as process:
        with pytest.raises(StateDirHeld) as caught:
            async with hold(tmp_path, SERVE):
                pass
        assert caught.value.holder == Holder(process.pid, SERVE, "127.0.0.1:4711")
        assert f"is in use by inferd serve (process {process.pid})" in caught.value.message
        assert "state_dir" in caught.value.message


async def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    async with held_elsewhere(tmp_path, SERVE) as process:
        process.kill()
        await process.wait()
        async with hold(tmp_path, SERVE):
            pass


async def test_another_command_is_waited_for(tmp_path: Path) -> None:
    async with held_elsewhere(tmp_path, "inferd keys create") as process:
        assert process.stdin is not None
        asyncio.get_running_loop().call_later(0.1, process.stdin.close)
        async with hold(tmp_path, SERVE):
            pass


async def test_the_wait_for_another_command_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "WAIT_S", 0.1)
    async with held_elsewhere(tmp_path, "inferd keys create"):
        with pytest.raises(StateDirHeld, match="inferd keys create"):
            async with hold(tmp_path, SERVE):
                pass


async def test_what_a_killed_server_wrote_misleads_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "WAIT_S", 0.2)
    gone = await asyncio.create_subprocess_exec("true")
    await gone.wait()
    async with hold(tmp_path, "a command"):
        (tmp_path / "inferd.lock").write_text(f'{{"pid": {gone.pid}, "purpose": "inferd serve"}}')
        asyncio.get_running_loop().call_later(
            0.05, lambda: (tmp_path / "inferd.lock").write_text("")
        )
        with pytest.raises(StateDirHeld, match="another process"):
            async with hold(tmp_path, SERVE):
                pass


async def test_a_program_we_start_does_not_keep_the_lock(tmp_path: Path) -> None:
    async with hold(tmp_path, SERVE):
        child = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        async with hold(tmp_path, SERVE):
            pass
    finally:
        child.kill()
        await child.wait()


async def test_a_running_server_is_seen_without_disturbing_anything(tmp_path: Path) -> None:
    assert lock.running_server(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()
    async with held_elsewhere(tmp_path, SERVE) as server:
        assert lock.running_server(tmp_path) == Holder(server.pid, SERVE, "127.0.0.1:4711")
    assert lock.running_server(tmp_path) is None, "a killed one is gone, whatever its record says"
    async with held_elsewhere(tmp_path, "inferd keys create"):
        assert lock.running_server(tmp_path) is None
    async with hold(tmp_path, SERVE):
        seen = lock.running_server(tmp_path)
        assert seen is not None
        assert seen.pid == os.getpid()
