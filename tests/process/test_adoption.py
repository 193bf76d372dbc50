"""What becomes of engines when inferd is killed or restarted: kept if sound, else ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from inferd import clock
from tests.fakes.engines_left import end_process, engines_of, none_left, recorded, rewrite
from tests.fakes.inferd_process import Folder, Serving

pytestmark = pytest.mark.real_time(timeout_s=90)

RUNNING_ALREADY = "is ready: its engine was running already"
SLOW_LOAD = json.dumps({"kind": "slow_load", "seconds": 4, "progress": True})
ORPHAN = json.dumps({"kind": "orphan", "seconds": 600})
BODY: dict[str, Any] = {
    "model": "chat",
    "messages": [{"role": "user", "content": "Tell me a long story."}],
    "max_tokens": 200,
    "ignore_eos": True,
    "stream": True,
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with none_left(tmp_path):
        yield Folder(tmp_path)


async def ready(folder: Folder, serving: Serving) -> None:
    """Until the worker serves, and that is written down."""
    await serving.until("is ready after")
    while not recorded(folder.state)[0]["was_ready"]:  # noqa: ASYNC110 - a file sends no events
        await asyncio.sleep(0.01)


async def killed(serving: Serving) -> None:
    serving.process.kill()
    await serving.process.wait()


async def worker_of(folder: Folder) -> dict[str, Any]:
    done = await folder.run("workers", "list", "--json")
    (worker,) = json.loads(done.out)
    found: dict[str, Any] = worker
    return found


async def ask(folder: Folder, key: str, body: dict[str, Any]) -> str:
    headers = {"Authorization": f"Bearer {key}"}
    url = f"{folder.base_url}/chat/completions"
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, json=body, headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return await answer.text()


async def first_events(folder: Folder, key: str, begun: asyncio.Event) -> None:
    """Begin a stream, tell, and read on until the server is gone."""
    headers = {"Authorization": f"Bearer {key}"}
    url = f"{folder.base_url}/chat/completions"
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, json=BODY, headers=headers) as answer,
    ):
        assert answer.status == 200
        await answer.content.readline()
        begun.set()
        with suppress(aiohttp.ClientError):
            while await answer.content.readline():
                pass


async def test_an_inferd_killed_amid_streams_finds_its_worker_again(folder: Folder) -> None:
    folder.spawn(speed=1.0)
    patient = "output_tokens_max = 256\nqueue = { refuse_late = false }"
    text = folder.config.read_text()
    folder.config.write_text(text.replace("output_tokens_max = 256", patient))
    key = await folder.key()
    async with folder.serving() as serving:
        await ready(folder, serving)
        before = await worker_of(folder)
        async with asyncio.TaskGroup() as clients:
            begun = [asyncio.Event() for _ in range(10)]
            for event in begun:
                clients.create_task(first_events(folder, key, event))
            for event in begun:
                await event.wait()
            await killed(serving)
    assert engines_of(folder.path) == [before["pid"]]

    async with folder.serving() as serving:
        listening = clock.monotonic()
        await serving.until(RUNNING_ALREADY)
        assert clock.monotonic() - listening < 2.0
        after = await worker_of(folder)
        assert (after["pid"], after["url"]) == (before["pid"], before["url"])
        assert after["adopted"]
        assert after["engine_running"] == 0, "what the dead inferd had begun is aborted"
        answer = await ask(folder, key, BODY | {"max_tokens": 4, "stream": False})
        assert json.loads(answer)["usage"]["completion_tokens"] == 4
        done = await serving.stop()
    assert done.code == 0, done.err
    assert recorded(folder.state) == []


async def test_an_adopted_worker_is_followed_like_any_other(folder: Folder) -> None:
    folder.spawn(workers="restart_backoff_s = 0.1")
    async with folder.serving() as serving:
        await ready(folder, serving)
        await killed(serving)
    async with folder.serving() as serving:
        await serving.until(RUNNING_ALREADY)
        pid = (await worker_of(folder))["pid"]
        os.kill(pid, signal.SIGKILL)
        assert "the engine has ended" in await serving.until("failed:")
        await serving.until("is ready after")
        assert not (await worker_of(folder))["adopted"]
        await serving.stop()


async def test_what_is_still_loading_goes_on_loading(folder: Folder) -> None:
    folder.spawn("--fault", SLOW_LOAD)
    async with folder.serving() as serving:
        await serving.until("loading weights")
        pids = engines_of(folder.path)
        await killed(serving)
    async with folder.serving() as serving:
        await serving.until("is ready after")
        assert engines_of(folder.path) == pids
        assert (await worker_of(folder))["adopted"]
        await serving.stop()


async def test_keep_workers_leaves_them_at_an_orderly_end(folder: Folder) -> None:
    folder.spawn()
    folder.config.write_text(
        folder.config.read_text().replace("[engine]", "keep_workers = true\n\n[engine]", 1)
    )
    async with folder.serving() as serving:
        await ready(folder, serving)
        pids = engines_of(folder.path)
        done = await serving.stop()
    assert done.code == 0, done.err
    assert "has stopped (left running for the next inferd)" in done.out
    assert engines_of(folder.path) == pids
    async with folder.serving() as serving:
        await serving.until(RUNNING_ALREADY)
        assert (await folder.run("workers", "reap")).code == 1, "the server has them"
        await serving.stop()
    reaped = await folder.run("workers", "reap", "--json")
    assert json.loads(reaped.out) == [{"worker": "chat-1-1", "pid": pids[0]}]
    assert engines_of(folder.path) == []
    assert "No engine was left running." in (await folder.run("workers", "reap")).err


async def test_a_reload_says_whether_they_are_left(folder: Folder) -> None:
    folder.spawn()
    folder.config.write_text(
        folder.config.read_text().replace("[engine]", "keep_workers = true\n\n[engine]", 1)
    )
    async with folder.serving() as serving:
        await serving.until("is ready after")
        folder.config.write_text(
            folder.config.read_text().replace("keep_workers = true", "keep_workers = false")
        )
        assert (await folder.run("reload")).code == 0
        await serving.stop()


@pytest.mark.parametrize("removed", [False, True])
async def test_what_is_not_wanted_so_any_more_is_ended(folder: Folder, removed: bool) -> None:
    folder.spawn()
    async with folder.serving() as serving:
        await ready(folder, serving)
        (old,) = engines_of(folder.path)
        await killed(serving)
    if removed:
        folder.attach("http://127.0.0.1:9")
    else:
        text = folder.config.read_text()
        folder.config.write_text(text.replace('device = "cpu"', 'device = "cpu", running_max = 8'))
    async with folder.serving() as serving:
        if not removed:
            await serving.until("is ready after")
            assert old not in engines_of(folder.path)
            assert len(engines_of(folder.path)) == 1
        done = await serving.stop()
    assert done.code == 0, done.err
    assert recorded(folder.state) == []


async def test_strays_are_ended_and_strangers_are_not(folder: Folder) -> None:
    """The leader is gone, its child stays; and the number is somebody else's by now."""
    folder.spawn("--fault", ORPHAN)
    async with folder.serving() as serving:
        await ready(folder, serving)
        leader = (await worker_of(folder))["pid"]
        (child,) = set(engines_of(folder.path)) - {leader}
        await killed(serving)
    os.kill(leader, signal.SIGKILL)
    stranger = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE
    )
    try:
        rewrite(folder.state, "UPDATE workers SET pid = ?", stranger.pid)
        async with folder.serving() as serving:
            await serving.until("is ready after")
            assert child not in engines_of(folder.path)
            await serving.stop()
        assert stranger.returncode is None
    finally:
        await stranger.communicate(b"\n")
    assert stranger.returncode == 0


async def test_one_that_does_not_answer_is_ended_and_replaced(folder: Folder) -> None:
    folder.spawn(workers="restart_backoff_s = 0.1")
    async with folder.serving() as serving:
        await ready(folder, serving)
        (old,) = engines_of(folder.path)
        await killed(serving)
    rewrite(folder.state, "UPDATE workers SET api_key = 'of another'")
    async with folder.serving() as serving:
        failed = await serving.until("failed:")
        assert "the engine that an earlier inferd has left cannot serve: it refuses its key" in (
            failed
        )
        await serving.until("is ready after")
        assert old not in engines_of(folder.path)
        await serving.stop()


async def test_of_an_earlier_boot_nothing_is_looked_for(folder: Folder) -> None:
    folder.spawn()
    async with folder.serving() as serving:
        await ready(folder, serving)
        await killed(serving)
    (pid,) = engines_of(folder.path)
    rewrite(folder.state, "UPDATE workers SET boot_id = 'of another boot'")
    async with folder.serving() as serving:
        await serving.until("is ready after")
        assert pid in engines_of(folder.path), "who says so is believed"
        await serving.stop()
    end_process(pid)
