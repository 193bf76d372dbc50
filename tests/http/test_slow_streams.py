"""Slow ends: a first token that takes long, and clients that read slowly or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from inferd.clock import monotonic
from inferd.inference import Outcome
from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import Gateway, gateway, until
from tests.http.raw_connection import ask, chat, client_of

pytestmark = pytest.mark.real_time

STALL = {"stall_s": 1.0}
LATEST_CUT_S = 2.5
"""After the last byte accepted: the limit, half of it until the next look, and a slow machine."""
MEGABYTES = {"max_tokens": 2_000, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
"""A frame of 2 KB for each token, 4 MB in all."""
BUFFERS_MAX = 1 << 20


async def test_a_late_first_token_is_waited_for_with_comments_and_so_is_a_late_failure(
    tmp_path: Path, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, paced) as inferd:
        await inferd.engine.fault("slow_first", seconds=5.5)
        await inferd.engine.fault("error_frame", match="And fail")
        async with client_of(inferd) as late, client_of(inferd) as failing:
            late.chat(chat("Late", max_tokens=3, stream=True))
            failing.chat(chat("And fail", max_tokens=3, stream=True))
            began = monotonic()
            status, headers = await late.head()
            waited_s = monotonic() - began
            good = await late.rest(status, headers)
            bad = await failing.answer()
        rows = {row.outcome: row for row in await inferd.rows()}
    assert 4.9 < waited_s < 10, "a comment after 5 s, and not the next one 15 s later"
    assert headers["content-type"].startswith("text/event-stream")
    assert good.body.startswith(b": keepalive\n\ndata: {")
    assert good.told.done
    assert bad.status == 200
    assert bad.body.startswith(b": keepalive\n\ndata: {")
    assert bad.told.error is not None
    assert not bad.told.done
    assert set(rows) == {Outcome.COMPLETED, Outcome.FAILED}
    assert rows[Outcome.FAILED].completion_tokens == 0


async def test_a_client_that_reads_nothing_is_cut_off_and_nobody_else(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast, server=STALL) as inferd:
        async with client_of(inferd, lazy=True) as sleeper, client_of(inferd) as neighbour:
            sleeper.chat(chat(stream=True, **MEGABYTES))
            await inferd.engine.until(running=1)
            began = monotonic()
            neighbour.chat(chat("Somebody else", max_tokens=20, stream=True))
            assert (await neighbour.answer()).told.done
            most = 0
            while inferd.held():
                most = max(most, _buffered(inferd))
                await asyncio.sleep(0.01)
            took_s = monotonic() - began
            await inferd.engine.until(running=0)
        rows = {row.outcome: row for row in await inferd.rows()}
    assert took_s < LATEST_CUT_S
    assert 0 < most < BUFFERS_MAX
    assert set(rows) == {Outcome.CLIENT_LEFT, Outcome.COMPLETED}
    assert 0 < rows[Outcome.CLIENT_LEFT].completion_tokens <= 2_000


async def test_a_client_that_reads_slowly_but_steadily_is_served(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast, server=STALL) as inferd:
        async with client_of(inferd, lazy=True) as client:
            client.chat(chat(stream=True, **MEGABYTES))
            until = monotonic() + 3.0
            while monotonic() < until:
                assert await client.read(16_384)
                await asyncio.sleep(0.1)
            assert inferd.held()
        await inferd.at_rest()
        assert (await inferd.row()).outcome == Outcome.CLIENT_LEFT


async def test_a_whole_answer_that_nobody_reads_is_not_kept(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast, server=STALL) as inferd:
        async with client_of(inferd, lazy=True) as sleeper:
            sleeper.chat(chat(**MEGABYTES))
            await until(lambda: _buffered(inferd))
            done = monotonic()
            await until(lambda: not _buffered(inferd))
            assert monotonic() - done < LATEST_CUT_S
            answer = await sleeper.answer()
        row = await inferd.row()
    assert not answer.complete
    assert (row.outcome, row.completion_tokens) == (Outcome.COMPLETED, 2_000)


async def test_nothing_is_held_back_until_there_is_more(
    tmp_path: Path, paced: EngineProcess
) -> None:
    """The engine sends two frames and falls silent: they arrive, whatever was asked for."""
    tool = {"type": "function", "function": {"name": "f"}}
    wishes: list[dict[str, Any]] = [
        {},
        {"tools": [tool], "tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
        {"stream_options": {"include_usage": True}},
    ]

    async def read_two(inferd: Gateway, wish: dict[str, Any]) -> None:
        async with client_of(inferd) as client:
            client.chat(chat(stream=True, **wish))
            async with asyncio.timeout(1.0):
                await client.head()
                read = b""
                while read.count(b"data: ") < 2:
                    read += await client.chunk()

    async with gateway(tmp_path, paced) as inferd:
        await inferd.engine.fault("silent", after=2)
        async with asyncio.TaskGroup() as clients:
            for wish in wishes:
                clients.create_task(read_two(inferd, wish))


async def test_an_answer_cut_after_the_engine_had_made_it_is_billed_exactly(
    tmp_path: Path, fast: EngineProcess
) -> None:
    """More than the client's side takes, wherever the rest is held: nothing is guessed."""
    sizes = [150, 200, 250, 300, 350]

    async def sleep_through(inferd: Gateway, tokens: int) -> None:
        async with client_of(inferd, lazy=True) as sleeper:
            sleeper.chat(chat(stream=True, **{**MEGABYTES, "max_tokens": tokens}))
            await until(inferd.held)
            await inferd.at_rest()

    async with gateway(tmp_path, fast, server=STALL) as inferd:
        async with asyncio.TaskGroup() as sleepers:
            for tokens in sizes:
                sleepers.create_task(sleep_through(inferd, tokens))
        rows = await inferd.rows()
    assert sorted(row.completion_tokens for row in rows) == sizes
    assert not any(row.estimated for row in rows)
    assert Outcome.CLIENT_LEFT in {row.outcome for row in rows}


def _buffered(inferd: Gateway) -> int:
    """Bytes that the public listener's connections hold for clients that do not read them."""
    served = inferd.app._public._served
    assert served is not None
    return sum(one.transport.get_write_buffer_size() for one in served.connections)


async def test_a_slow_reader_has_the_same_bill_as_a_quick_one(
    tmp_path: Path, fast: EngineProcess
) -> None:
    body = chat(stream=True, **{**MEGABYTES, "max_tokens": 400})
    async with gateway(tmp_path, fast, server=STALL) as inferd:
        quick = await ask(inferd, body)
        async with client_of(inferd, lazy=True) as client:
            client.chat(body)
            read = b""
            while b"[DONE]" not in read[-200:]:
                read += await client.read(65_536)
                await asyncio.sleep(0.02)
        rows = await inferd.rows()
    assert quick.told.done
    assert [row.completion_tokens for row in rows] == [400, 400]
    assert not any(row.estimated for row in rows)
