"""Prefill and decode on two real engines. Goal: whole answers by both, honest errors by one."""

from __future__ import annotations

import asyncio
import ctypes.util
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from inferd.clock import monotonic
from inferd.provision.environment import EngineEnvironment
from inferd.provision.recipes import SPLIT, Device
from tests.fakes.engines import ENGINE_ENVIRONMENT
from tests.fakes.served import MODEL, START_S, Served, served

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.real_time(timeout_s=420)]

TTFT_TIMEOUT_S = 4.0
POLL_S = 0.1
SECTIONS = f"""
[models.versions.split]
ttft_timeout_s = {TTFT_TIMEOUT_S}

[models.versions.watchdog]
act = "log"
"""


async def ask(inferd: Served, *, stream: bool = False, **more: Any) -> tuple[int, str]:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell me of rivers, hills and old maps."}],
        "max_tokens": 16,
        "temperature": 0,
        "stream": stream,
        "ignore_eos": True,
        **more,
    }
    url, headers = f"{inferd.base_url}/chat/completions", {"Authorization": f"Bearer {inferd.key}"}
    async with inferd.http.post(url, json=body, headers=headers) as answer:
        return answer.status, await answer.text()


async def both_ready(inferd: Served, but_not: int | None = None) -> dict[str, dict[str, Any]]:
    """The workers by side, once each takes requests."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                workers = (await inferd.status())["pools"][0]["workers"]
            except (aiohttp.ClientError, OSError):
                workers = []
            ready = [one for one in workers if one["state"] == "ready" and one["pid"] != but_not]
            if len(ready) == 2:
                return {one["side"]: one for one in ready}
            await asyncio.sleep(POLL_S)


async def lost(inferd: Served, side: str, number: signal.Signals, *, stream: bool) -> None:
    """A side that is lost under a request is told of in time."""
    pid = (await both_ready(inferd))[side]["pid"]
    os.killpg(pid, signal.SIGSTOP)
    start = monotonic()
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask(inferd, stream=stream))
        async with asyncio.timeout(TTFT_TIMEOUT_S):
            while not (await both_ready(inferd))[side]["inflight"]:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
        os.killpg(pid, number)
    status, text = asked.result()
    assert monotonic() - start < TTFT_TIMEOUT_S + 1.0
    assert status in (502, 503, 504), text


async def test_two_engines_answer_together_and_either_may_be_lost(tmp_path: Path) -> None:
    if SPLIT not in EngineEnvironment(ENGINE_ENVIRONMENT).extras(Device.CPU):
        pytest.skip("`inferd engine install --with split` was not run")
    if ctypes.util.find_library("ibverbs") is None:
        pytest.skip("libibverbs is not installed")
    async with served(tmp_path, sections=SECTIONS) as inferd:
        await both_ready(inferd)
        status, text = await ask(inferd)
        assert status == 200, text
        whole = orjson.loads(text)
        assert whole["usage"]["completion_tokens"] == 16
        status, text = await ask(inferd, stream=True, stream_options={"include_usage": True})
        assert status == 200
        assert text.endswith("data: [DONE]\n\n")
        assert '"completion_tokens":16' in text
        many = await asyncio.gather(*(ask(inferd, stream=bool(n % 2)) for n in range(8)))
        assert {status for status, _ in many} == {200}

        before = {side: one["pid"] for side, one in (await both_ready(inferd)).items()}
        await inferd.killed_and_started_again()
        after = {side: one["pid"] for side, one in (await both_ready(inferd)).items()}
        assert after == before, "both are taken over"
        many = await asyncio.gather(*(ask(inferd, stream=bool(n % 2)) for n in range(4)))
        assert {status for status, _ in many} == {200}

        for side, stream in (("prefill", True), ("decode", False)):
            pid = (await both_ready(inferd))[side]["pid"]
            await lost(inferd, side, signal.SIGKILL, stream=stream)
            if side == "prefill":  # that the other one comes back as well is tried on fake engines
                await both_ready(inferd, but_not=pid)
                status, text = await ask(inferd)
                assert status == 200, text
        await inferd.written()
        rows = [row for row in inferd.rows() if row.team == "demo" and row.outcome == "completed"]
        assert {(row.worker, row.prefill_worker) for row in rows} == {
            (f"{MODEL}-1-1", f"{MODEL}-1-p1")
        }
