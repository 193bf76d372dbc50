"""The whole product on the real engine: what an operator starts, what the teams' SDK sees."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from inferd.clock import monotonic
from tests.fakes.engines_left import engines_of
from tests.fakes.served import (
    MODEL,
    Served,
    ServeProcess,
    command,
    engine_tokens,
    session_of,
    using,
)

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.real_time(timeout_s=420)]

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Count to ten thousand."}]
STREAMS = 10
OK = 200
AGAIN_S = 0.2


def client_of(inferd: Served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=inferd.base_url, api_key=inferd.key, max_retries=0)


async def one_stream(client: openai.AsyncOpenAI, number: int) -> int:
    """Tokens whose events arrived: each one's log probability is in the event that brought it."""
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"Story number {number}."}],
        max_tokens=40,
        stream=True,
        logprobs=True,
        extra_body={"ignore_eos": True},
    )
    finishes = 0
    tokens = 0
    async for chunk in stream:
        for choice in chunk.choices:
            finishes += choice.finish_reason is not None
            tokens += len((choice.logprobs and choice.logprobs.content) or ())
    assert finishes == 1
    return tokens


async def test_streams_cancels_and_the_ledger_agree_with_the_engine(
    plain_inferd: ServeProcess,
) -> None:
    async with using(plain_inferd) as inferd, client_of(inferd) as client:
        await inferd.at_rest()
        before, rows_before = await engine_tokens(inferd), len(inferd.rows())
        tokens = await asyncio.gather(*(one_stream(client, n) for n in range(16)))
        assert tokens == [40] * 16

        whole = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8)
        assert whole.choices[0].message.content
        turns: list[ChatCompletionMessageParam] = [
            *HELLO,
            {"role": "assistant", "content": whole.choices[0].message.content},
            {"role": "user", "content": "And then?"},
        ]
        second = await client.chat.completions.create(model=MODEL, messages=turns, max_tokens=8)
        assert second.usage is not None
        assert second.usage.prompt_tokens_details is not None
        assert (second.usage.prompt_tokens_details.cached_tokens or 0) > 0

        await leave_in_every_phase(inferd)
        await inferd.at_rest()
        after = await engine_tokens(inferd)
        grown = {name: after[name] - before.get(name, 0) for name in after}
        rows = inferd.rows()[rows_before:]
        assert sum(row.prompt_tokens for row in rows) == grown["prompt_tokens_total"]
        assert sum(row.completion_tokens for row in rows) == grown["generation_tokens_total"]
        assert not any(row.estimated for row in rows)
        balance = await inferd.ask_admin("reconcile")
        assert balance["balanced"], balance
        (worker,) = balance["workers"]
        assert worker["engine"]["cached_tokens"] == sum(row.cached_tokens for row in inferd.rows())
        assert {row.team for row in inferd.rows()} == {"demo", "system"}
        assert inferd.key not in inferd.log


async def leave_in_every_phase(inferd: Served) -> None:
    """Before the first token, mid-stream, and from an answer that does not stream."""
    for stream, events in ((True, 0), (True, 5), (False, 0)):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(ask_for_much(inferd, stream=stream, events=events))
            if not events:
                await until(inferd, lambda status: status["pools"][0]["workers"][0]["inflight"])
                task.cancel()
        async with asyncio.timeout(1.0):
            await until(inferd, lambda status: not status["requests_in_flight"])


async def ask_for_much(inferd: Served, *, stream: bool, events: int) -> None:
    """Ask for 2,000 tokens, and leave after so many events."""
    url = f"{inferd.base_url}/chat/completions"
    headers = {"Authorization": f"Bearer {inferd.key}"}
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 2_000, "ignore_eos": True}
    async with inferd.http.post(url, json={**body, "stream": stream}, headers=headers) as answer:
        if not events:
            await answer.read()
        for _ in range(events):
            assert await answer.content.readline()
        answer.close()


async def until(inferd: Served, holds: Callable[[dict[str, Any]], object]) -> None:
    while not holds(await inferd.status()):  # noqa: ASYNC110 - the server's state is no event here
        await asyncio.sleep(0.02)


async def test_no_second_server_and_no_taken_port(
    tmp_path: Path, plain_inferd: ServeProcess
) -> None:
    async with using(plain_inferd) as inferd:
        code, _, err = await command(inferd.folder, "serve")
        assert code == 1
        assert "is in use by inferd serve" in err
        other = tmp_path / "other"
        other.mkdir()
        text = (inferd.folder / "inferd.toml").read_text()
        (other / "inferd.toml").write_text(text)
        code, _, err = await command(other, "serve")
        assert code == 1
        assert f"{inferd.public} is taken by another process" in err


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


async def test_inferd_killed_amid_streams_takes_its_engine_over_without_loading_it_again(
    plain_inferd: ServeProcess,
) -> None:
    async with using(plain_inferd) as inferd:
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
        assert set(session) <= set(engines_of(inferd.folder)), "each of its processes is marked"

        await inferd.until_listening()
        listening = monotonic()
        after = await inferd.until_ready()
        assert monotonic() - listening < 2.0, "it is taken over, which takes no load"
        assert after["adopted"]
        assert (after["pid"], after["url"]) == (before["pid"], before["url"])
        assert session_of(before["pid"]) == session
        await inferd.at_rest()
        (output,) = (inferd.folder / "state" / "workers").glob("*/output.log")
        assert output.read_text(errors="replace").count("Load weight begin") == 1

        async with client_of(inferd) as client:
            answer = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hello."}], max_tokens=8
            )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 8


async def read_and_kill(stream: openai.AsyncStream[ChatCompletionChunk], engine: int) -> None:
    """Read to the end; after five events the engine is gone."""
    seen = 0
    async for _ in stream:
        seen += 1
        if seen == 5:
            os.kill(engine, signal.SIGKILL)


async def test_a_killed_worker_is_told_replaced_and_a_terminated_server_finishes(
    plain_inferd: ServeProcess,
) -> None:
    async with using(plain_inferd) as inferd, client_of(inferd) as client:
        rows_before = len(inferd.rows())
        worker = await inferd.worker()
        engine = worker["pid"]
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=2_000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        with pytest.raises(openai.APIError) as caught:
            await read_and_kill(stream, engine)
        assert caught.value.body is not None
        assert caught.value.code == "worker_unavailable"

        replaced = await inferd.until_ready(but_not=engine)
        assert session_of(engine) == []
        again = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4)
        assert again.choices[0].message.content

        last = await client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=300,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        finish = None
        told = False
        async for chunk in last:
            if not told:
                told = True
                inferd.signal(signal.SIGTERM)
            finish = chunk.choices[0].finish_reason if chunk.choices else finish
        assert finish == "length"
        assert await inferd.ended() == 0
        assert session_of(replaced["pid"]) == []
        outcomes = [row.outcome for row in inferd.rows()[rows_before:] if row.team == "demo"]
        assert outcomes == ["failed", "completed", "completed"]
