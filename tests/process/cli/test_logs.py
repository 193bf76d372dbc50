from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.engines import fake_engine
from tests.fakes.inferd_process import Folder


@pytest.mark.real_time
async def test_output_is_shown_followed_and_kept(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.spawn()
    async with folder.serving() as serving:
        await serving.until("is ready after")
        shown = await folder.run("logs", "chat-1-1", "-n", "1000")
        assert shown.code == 0, shown.err
        assert shown.out.startswith("[inferd] chat-1-1 starts: ")
        assert "Load weight begin" in shown.out
        assert shown.out.endswith("\n")
        assert len((await folder.run("logs", "chat-1-1", "-n", "2")).out.splitlines()) == 2
        assert (await folder.run("logs", "chat-1-1", "-n", "0")).out == ""

        async with folder.started("logs", "chat-1-1", "-f", "-n", "1") as following:
            assert following.stdout is not None
            await following.stdout.readline()
            stopped = await serving.stop()
            rest = (await following.stdout.read()).decode()
            assert await following.wait() == 0
        # The last words of the worker come before the stream ends, and it ends by itself.
        assert "SIGTERM received" in rest
        assert rest.endswith("[inferd] chat-1-1 stopped: drained\n")
        assert stopped.code == 0

    kept = await folder.run("logs", "chat-1-1", "-n", "1")
    assert kept.out == "[inferd] chat-1-1 stopped: drained\n"
    assert kept.err == "No server runs; this is from its last one.\n"
    assert kept.code == 0


@pytest.mark.real_time
async def test_a_follower_that_leaves_is_let_go(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.spawn()
    async with folder.serving() as serving:
        await serving.until("is ready after")
        async with folder.started("logs", "chat-1-1", "-f") as following:
            assert following.stdout is not None
            await following.stdout.readline()
        done = await serving.stop()
        assert '"route":"/admin/v1/workers/{id}/output","method":"GET","status":200' in done.err
        assert '"outcome":"client_left"' in done.err


@pytest.mark.real_time
async def test_a_worker_without_output_here_is_told(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with fake_engine(tmp_path, model="chat") as engine:
        folder.attach(engine.base_url)
        async with folder.serving():
            attached = await folder.run("logs", "chat-1-a1")
            assert attached.code == 1
            assert f"somebody else runs it, at {engine.base_url}" in attached.err
            unknown = await folder.run("logs", "chat-9", "--follow")
            assert unknown.code == 1
            assert "There is no worker 'chat-9'; there are: chat-1-a1." in unknown.err
    (folder.state / "workers" / "chat-1-1").mkdir(parents=True)
    (folder.state / "workers" / "chat-1-1" / "output.log").write_text("x\n")
    for name in ("chat-9", "../../state/workers/chat-1-1", "."):
        gone = await folder.run("logs", name)
        assert gone.code == 1
        assert "it has that of: chat-1-1." in gone.err
