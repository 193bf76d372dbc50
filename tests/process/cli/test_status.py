from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.fakes.engines import fake_engine
from tests.fakes.inferd_process import Folder

SLOW_LOAD = json.dumps({"kind": "slow_load", "seconds": 30, "progress": True})


@pytest.mark.real_time
async def test_a_node_is_shown_for_people_and_for_scripts(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with fake_engine(tmp_path, model="chat") as engine:
        folder.attach(engine.base_url)
        many = "".join(f'[[teams]]\nname = "team-{n}"\n' for n in range(1_000))
        folder.config.write_text(folder.config.read_text() + many)
        async with folder.serving() as serving:
            await serving.until("is ready after")
            shown = await folder.run("status")
            assert shown.code == 0, shown.err
            lines = [" ".join(line.split()) for line in shown.out.splitlines()]
            assert lines[0].startswith("inferd 0.1.0: ready, up ")
            assert "chat@1 ready 1/1 ready 0 0" in lines
            (worker,) = (line for line in lines if line.startswith("chat-1-a1 "))
            assert worker.endswith(f"attached, {engine.base_url}")
            assert "search 100,000 100,000 0 0" in lines
            assert "\x1b" not in shown.out

            status = json.loads((await folder.run("status", "--json")).out)
            assert status["ready"] is True
            assert status["pools"][0]["workers"][0]["state"] == "ready"
            assert status["teams"][0]["tokens_left"] == 100_000
            assert len(status["teams"]) == 1_001

            listed = await folder.run("workers", "list")
            assert "chat-1-a1" in listed.out
            workers = json.loads((await folder.run("workers", "list", "--json")).out)
            assert [(worker["worker"], worker["pool"]) for worker in workers] == [
                ("chat-1-a1", "chat@1")
            ]


@pytest.mark.real_time
async def test_progress_of_a_start_is_shown_and_seen_to_change(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.spawn("--fault", SLOW_LOAD)
    async with folder.serving() as serving:
        await serving.until("loading weights")
        async with folder.started("status", "--watch", "--json", "--interval", "0.2") as watch:
            assert watch.stdout is not None
            looks = [json.loads(await watch.stdout.readline()) for _ in range(2)]
            workers = [look["pools"][0]["workers"][0] for look in looks]
            assert [worker["state"] for worker in workers] == ["loading"] * 2
            assert workers[0]["since_s"] < workers[1]["since_s"]
            assert "loading weights: Loading safetensors" in workers[1]["progress"]
        async with folder.in_terminal("status", "--watch") as terminal:
            await terminal.until("no worker is ready")
            await terminal.until("loading weights: Loading safetensors")
            terminal.interrupt()
            assert await terminal.end() == 130
            assert "Traceback" not in terminal.text


@pytest.mark.real_time
async def test_without_a_server_the_next_step_is_told(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.attach("http://127.0.0.1:9")
    for command in (["status"], ["reload"], ["workers", "list"], ["workers", "restart", "x"]):
        done = await folder.run(*command)
        assert done.code == 1, command
        assert done.err == (
            f"inferd: No server runs on {folder.state}. Start one: inferd serve --config"
            " inferd.toml\n"
        )
    assert not folder.state.exists(), "looking leaves nothing behind"
    async with folder.started("status", "--watch") as watch:
        assert watch.stdout is not None
        assert (await watch.stdout.readline()).decode().startswith("No server runs on")


@pytest.mark.real_time
async def test_a_file_that_is_being_edited_does_not_hide_the_server(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.attach("http://127.0.0.1:9")
    async with folder.serving():
        folder.config.write_text(folder.config.read_text() + "\n[[teams]]\nname = 5\n")
        assert (await folder.run("status")).code == 0
        refused = await folder.run("reload")
        assert refused.code == 1
        assert refused.err.startswith("inferd.toml:") or f"{folder.config}:" in refused.err
        assert refused.err.endswith("Nothing was changed.\n")
    folder.config.write_text("[server\n")
    unreadable = await folder.run("status")
    assert unreadable.code == 1
    assert "inferd.toml:1: not valid TOML" in unreadable.err


@pytest.mark.real_time
async def test_a_changed_file_is_applied_or_refused_whole(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.attach("http://127.0.0.1:9")
    before = folder.config.read_text()
    async with folder.serving() as serving:
        nothing = await folder.run("reload")
        assert (nothing.code, nothing.err) == (0, "")
        assert "nothing to change" in nothing.out

        changed = before.replace("burst_tokens = 100_000", "burst_tokens = 5_000")
        folder.config.write_text(changed + '\n[[teams]]\nname = "ads"\n')
        applied = await folder.run("reload")
        assert applied.out.splitlines() == [
            "team ads is added",
            "team search: burst_tokens 100,000 -> 5,000",
        ]
        assert "ads" in (await folder.run("status")).out

        folder.config.write_text(before.replace("[server]", "[server]\nstall_s = 1.0"))
        refused = await folder.run("reload", "--json")
        assert refused.code == 1
        (problem,) = json.loads(refused.out)["problems"]
        assert problem.startswith("server.stall_s needs a restart")
        assert await _burst(folder) == 5_000

        folder.config.write_text(before)
        serving.process.send_signal(signal.SIGHUP)
        while await _burst(folder) != 100_000:
            assert serving.process.returncode is None


async def _burst(folder: Folder) -> int:
    status = json.loads((await folder.run("status", "--json")).out)
    burst: int = status["teams"][0]["burst_tokens"]
    return burst


@pytest.mark.real_time
async def test_a_worker_can_be_restarted(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.spawn()
    async with folder.serving() as serving:
        await serving.until("is ready after")
        unknown = await folder.run("workers", "restart", "nobody")
        assert unknown.code == 1
        assert "there are: chat-1-1" in unknown.err
        done = await folder.run("workers", "restart", "chat-1-1")
        assert (done.code, done.out) == (0, "")
        assert "starts again" in done.err
        await serving.until("has stopped (drained)")
        await serving.until("is ready after")
