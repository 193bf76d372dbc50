"""Prefill and decode on separate workers. Goal: whole answers by both, honest errors by one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from inferd.clock import monotonic
from tests.fakes.engines import free_port
from tests.fakes.engines_left import none_left
from tests.fakes.inferd_process import TEXT, Folder, Serving
from tests.fakes.installed_engine import install_fake_engine, make_model

pytestmark = pytest.mark.real_time

TTFT_TIMEOUT_S = 2.0
VERSION = """\
weights = "model"

[models.versions.engine]
device = "cpu"

[models.versions.workers]
restart_backoff_s = 0.1

[models.versions.split]
ttft_timeout_s = {ttft_timeout_s}

[models.versions.watchdog]
act = "log"
"""


class Split:
    """A running inferd with one worker on each side."""

    def __init__(self, folder: Folder, key: str, http: aiohttp.ClientSession) -> None:
        self.folder = folder
        self._headers = {"Authorization": f"Bearer {key}"}
        self._http = http

    async def ask(self, *, stream: bool = False, **more: Any) -> tuple[int, str]:
        body = {
            "model": "chat",
            "messages": [{"role": "user", "content": "[tokens 20] Tell me of rivers."}],
            "stream": stream,
            **more,
        }
        url = f"{self.folder.base_url}/chat/completions"
        async with self._http.post(url, json=body, headers=self._headers) as answer:
            return answer.status, await answer.text()

    async def workers(self) -> dict[str, dict[str, Any]]:
        status = json.loads((await self.folder.run("status", "--json")).out)
        return {worker["side"]: worker for worker in status["pools"][0]["workers"]}

    async def until_ready(self, but_not: int | None = None) -> None:
        async with asyncio.timeout(30):
            while True:
                workers = (await self.workers()).values()
                if all(one["state"] == "ready" and one["pid"] != but_not for one in workers):
                    return

    async def until_asked(self, side: str) -> None:
        """That worker has been given a request."""
        async with asyncio.timeout(30):
            while not (await self.workers())[side]["inflight"]:
                pass


def prepared(tmp_path: Path, ttft_timeout_s: float = TTFT_TIMEOUT_S) -> Folder:
    folder = Folder(tmp_path)
    install_fake_engine(tmp_path / "engine")
    make_model(tmp_path / "model")
    version = VERSION.format(ttft_timeout_s=ttft_timeout_s)
    folder.config.write_text(
        TEXT.format(port=folder.port, admin_port=free_port(), version=version, server="")
    )
    return folder


@asynccontextmanager
async def running(folder: Folder) -> AsyncIterator[tuple[Split, Serving]]:
    key = await folder.key()
    async with folder.serving() as serving, aiohttp.ClientSession() as http:
        await serving.until("is ready")
        inferd = Split(folder, key, http)
        await inferd.until_ready()
        yield inferd, serving


@asynccontextmanager
async def split(tmp_path: Path, ttft_timeout_s: float = TTFT_TIMEOUT_S) -> AsyncIterator[Split]:
    async with running(prepared(tmp_path, ttft_timeout_s)) as (inferd, _):
        yield inferd


async def test_a_request_is_answered_by_both_sides(tmp_path: Path) -> None:
    async with split(tmp_path) as inferd:
        status, text = await inferd.ask()
        assert status == 200, text
        whole = json.loads(text)
        assert whole["usage"]["completion_tokens"] > 10
        status, text = await inferd.ask(stream=True, stream_options={"include_usage": True})
        assert status == 200
        assert text.endswith("data: [DONE]\n\n")
        events = [json.loads(line[6:]) for line in text.splitlines() if line[:7] == "data: {"]
        said = "".join(one["choices"][0]["delta"].get("content") or "" for one in events[:-1])
        assert said == whole["choices"][0]["message"]["content"]
        assert events[-1]["usage"] is not None

        many = await asyncio.gather(*(inferd.ask(stream=bool(n % 2)) for n in range(16)))
        assert {status for status, _ in many} == {200}
        status, text = await inferd.ask(n=2)
        assert status == 400

        (pool,) = json.loads((await inferd.folder.run("pools", "--json")).out)
        assert pool["sides"]["prefill"] == {"wanted": 1, "ready": 1, "inflight": 0}
        assert pool["sides"]["decode"] == {"wanted": 1, "ready": 1, "inflight": 0}
        shown = (await inferd.folder.run("pools")).out
        assert "prefill 1/1, decode 1/1" in shown
        path = inferd.folder.state / "inferd.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as ledger:
            found = ledger.execute(
                "SELECT DISTINCT worker, prefill_worker FROM requests"
                " WHERE team = 'search' AND outcome = 'completed'"
            ).fetchall()
        assert found == [("chat-1-1", "chat-1-p1")]


async def test_a_lost_side_is_told_of_in_time_and_followed_by_another(tmp_path: Path) -> None:
    async with split(tmp_path) as inferd:
        for side, stream in (("prefill", True), ("decode", False)):
            await _hangs(inferd, side)
            await _is_killed(inferd, side, stream=stream)
        async with asyncio.timeout(30):
            while any(one["inflight"] for one in (await inferd.workers()).values()):
                pass


async def _hangs(inferd: Split, side: str) -> None:
    pid = (await inferd.workers())[side]["pid"]
    os.kill(pid, signal.SIGSTOP)
    start = monotonic()
    status, text = await inferd.ask(stream=True)
    took_s = monotonic() - start
    os.kill(pid, signal.SIGCONT)
    assert status == 504, text
    assert json.loads(text)["error"]["code"] == "upstream_timeout"
    assert TTFT_TIMEOUT_S - 0.5 < took_s < TTFT_TIMEOUT_S + 1.5
    status, text = await inferd.ask()
    assert status == 200, text


async def _is_killed(inferd: Split, side: str, *, stream: bool) -> None:
    pid = (await inferd.workers())[side]["pid"]
    os.kill(pid, signal.SIGSTOP)
    start = monotonic()
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(inferd.ask(stream=stream))
        await inferd.until_asked(side)
        os.kill(pid, signal.SIGKILL)
    status, text = asked.result()
    assert monotonic() - start < TTFT_TIMEOUT_S
    assert status in (502, 503), text
    assert json.loads(text)["error"]["code"] in ("worker_unavailable", "no_worker")
    await inferd.until_ready(but_not=pid)
    assert (await inferd.ask())[0] == 200


async def test_a_killed_inferd_finds_both_sides_again(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    with none_left(tmp_path):
        async with running(folder) as (inferd, serving):
            assert (await inferd.ask())[0] == 200
            before = {side: one["pid"] for side, one in (await inferd.workers()).items()}
            serving.process.kill()
            await serving.process.wait()
        async with running(folder) as (inferd, serving):
            found = await inferd.workers()
            assert {side: one["pid"] for side, one in found.items()} == before
            assert all(one["adopted"] for one in found.values())
            many = await asyncio.gather(*(inferd.ask(stream=bool(n % 2)) for n in range(8)))
            assert {status for status, _ in many} == {200}
            await _is_killed(inferd, "prefill", stream=True)
            done = await serving.stop()
    assert done.code == 0, done.err
