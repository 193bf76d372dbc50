"""inferd is killed while the real engine streams; the next one goes on with the same engine."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import aiohttp
import openai
import pytest

from inferd import clock
from tests.fakes.engines_left import engines_of, none_left
from tests.fakes.served import MODEL, Served, served, session_of

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.real_time(timeout_s=300)]

STREAMS = 10
OK = 200
AGAIN_S = 0.2


async def stream_until_cut(inferd: Served, number: int, begun: asyncio.Event) -> None:
    url = f"{inferd.base_url}/chat/completions"
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Story number {number}."}],
        "max_tokens": 2_000,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"Authorization": f"Bearer {inferd.key}"}
    with suppress(aiohttp.ClientError):
        while not begun.is_set():
            async with inferd.http.post(url, json=body, headers=headers) as answer:
                async for _ in answer.content:
                    if answer.status == OK:
                        begun.set()
            await asyncio.sleep(AGAIN_S)  # it was refused: too many at once


async def test_the_engine_is_taken_over_within_two_seconds_and_gone_in_the_end(
    tmp_path: Path,
) -> None:
    with none_left(tmp_path):
        async with served(tmp_path) as inferd:
            before = await inferd.worker()
            async with asyncio.TaskGroup() as clients:
                begun = [asyncio.Event() for _ in range(STREAMS)]
                for number, event in enumerate(begun):
                    clients.create_task(stream_until_cut(inferd, number, event))
                for event in begun:
                    await event.wait()
                await inferd.killed_and_started_again()
            session = session_of(before["pid"])
            assert len(session) >= 3
            assert set(session) <= set(engines_of(tmp_path)), "each of its processes is marked"

            await inferd.until_listening()
            listening = clock.monotonic()
            after = await inferd.until_ready()
            assert clock.monotonic() - listening < 2.0
            assert after["adopted"]
            assert (after["pid"], after["url"]) == (before["pid"], before["url"])
            assert session_of(before["pid"]) == session
            await inferd.at_rest()
            (output,) = (tmp_path / "state" / "workers").glob("*/output.log")
            assert output.read_text(errors="replace").count("Load weight begin") == 1

            client = openai.AsyncOpenAI(base_url=inferd.base_url, api_key=inferd.key, max_retries=0)
            async with client:
                answer = await client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "Hello."}], max_tokens=8
                )
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 8
        assert session_of(before["pid"]) == []
