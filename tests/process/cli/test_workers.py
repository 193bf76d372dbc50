"""`inferd workers`: one worker is shown, drained, kept stopped, and started again."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.inferd_process import Folder


@pytest.mark.real_time(timeout_s=60)
async def test_a_worker_is_shown_drained_and_started_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.spawn()
    async with folder.serving() as serving:
        await serving.until("is ready after")
        shown = await folder.run("workers", "show", "chat-1-1")
        assert shown.code == 0, shown.err
        lines = {line.partition("  ")[0]: line.partition("  ")[2] for line in shown.out.split("\n")}
        assert lines["pool"].strip() == "chat@1"
        assert lines["engine"].strip().endswith("started by this inferd")
        assert lines["KV cache"].strip().startswith("0 of ")

        drained = await folder.run("workers", "drain", "chat-1-1", "--within", "5s")
        assert "inferd workers restart chat-1-1 starts it again" in drained.err
        await serving.until("has stopped")
        details = json.loads((await folder.run("workers", "show", "chat-1-1", "--json")).out)
        assert (details["state"], details["held"]) == ("stopped", True)
        assert "drained by hand" in details["outlook"]
        listed = await folder.run("workers", "list")
        assert "drained by hand: `inferd workers restart chat-1-1` starts it" in listed.out
        reloaded = await folder.run("reload")
        assert reloaded.code == 0, reloaded.err

        assert (await folder.run("workers", "restart", "chat-1-1")).code == 0
        await serving.until("is ready after")
        output = await folder.run("workers", "logs", "chat-1-1", "-n", "1000")
        assert output.out.count("fired up and ready to roll") == 2
        unknown = await folder.run("workers", "drain", "nobody")
        assert unknown.code == 1
        assert "There is no worker 'nobody'; there are: chat-1-1." in unknown.err
        wrong = await folder.run("workers", "drain", "chat-1-1", "--within", "soon")
        assert wrong.code == 2
        await serving.stop()


@pytest.mark.real_time(timeout_s=60)
async def test_what_a_drain_does_not_wait_for_is_told_and_billed_so_far(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.spawn(speed=1.0)
    patient = "output_tokens_max = 256\nqueue = { refuse_late = false }"
    text = folder.config.read_text()
    folder.config.write_text(text.replace("output_tokens_max = 256", patient))
    headers = {"Authorization": f"Bearer {await folder.key()}"}
    url = f"{folder.base_url}/chat/completions"
    body = {
        "model": "chat",
        "messages": [{"role": "user", "content": "Tell me a long story."}],
        "max_tokens": 256,
        "ignore_eos": True,
    }

    async with folder.serving() as serving, aiohttp.ClientSession() as http:
        await serving.until("is ready after")

        async def whole() -> tuple[int, str]:
            async with http.post(url, json=body, headers=headers) as answer:
                return answer.status, await answer.text()

        async with (
            asyncio.TaskGroup() as group,
            http.post(url, json={**body, "stream": True}, headers=headers) as stream,
        ):
            asked = group.create_task(whole())
            assert (await stream.content.readline()).startswith(b"data: ")
            while (
                json.loads((await folder.run("status", "--json")).out)["pools"][0]["workers"][0][
                    "inflight"
                ]
                < 2
            ):
                pass
            assert (await folder.run("workers", "drain", "chat-1-1", "--within", "1s")).code == 0
            told = (await stream.text()).strip().splitlines()[-1]
        error = json.loads(told.removeprefix("data: "))["error"]
        status, answer = asked.result()
        assert status == 503, answer
        assert json.loads(answer)["error"]["code"] == error["code"] == "worker_unavailable"
        assert 0 < error["usage"]["completion_tokens"] < 256
        await serving.until("has stopped")
        await serving.stop()
    with closing(sqlite3.connect(f"file:{folder.state / 'inferd.db'}?mode=ro", uri=True)) as ledger:
        billed = ledger.execute(
            "SELECT outcome, completion_tokens FROM requests WHERE team = 'search' AND stream"
        ).fetchall()
    assert billed == [("failed", error["usage"]["completion_tokens"])]


@pytest.mark.real_time(timeout_s=60)
async def test_gpus_are_shown_with_and_without_a_server(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.attach("http://127.0.0.1:9")
    env = {"CUDA_VISIBLE_DEVICES": "0,1"}
    alone = await folder.run("gpus", env=env)
    assert alone.code == 0, alone.err
    assert [line.split()[:2] for line in alone.out.splitlines()[1:]] == [
        ["0", "free"],
        ["1", "free"],
    ]
    assert "No server runs; this is what the machine has." in alone.err
    assert (await folder.run("gpus", "--json", env={"CUDA_VISIBLE_DEVICES": ""})).out == "[]\n"
    lifted = await folder.run("gpus", "lift", "0")
    assert lifted.code == 1
    assert "No server runs on" in lifted.err
    async with folder.serving() as serving:
        shown = json.loads((await folder.run("gpus", "--json")).out)
        assert all(gpu["state"] == "free" for gpu in shown)
        unknown = await folder.run("gpus", "lift", "99")
        assert unknown.code == 1
        assert "There is no GPU '99'" in unknown.err
        await serving.stop()
