"""Ending a request early, on both engines: what it costs, and that its slot is free again."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from tests.contract.client import idle_after
from tests.fakes.engines import EngineProcess

pytestmark = pytest.mark.real_time

SOON_S = 3.0
"""Less than the 4 s after which the engine looks who has left."""
POLLED_S = 20.0


async def test_an_aborted_stream_ends_with_its_exact_bill(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        before = await client.counter("generation_tokens_total")
        async with client.stream(client.holding(rid="bill-me")) as stream:
            await stream.started()
            for _ in range(6):
                assert await stream.frame()
            await client.abort(rid="bill-me")
            told = await stream.rest()
        assert told.finish == "abort"
        assert told.done
        assert told.usage["completion_tokens"] >= 5
        await client.until(running=0, limit_s=SOON_S)
        grown = await client.counter("generation_tokens_total") - before
        assert grown == told.usage["completion_tokens"]


async def test_an_aborted_whole_answer_is_a_200_with_its_part(
    shared_engine: EngineProcess,
) -> None:
    async with idle_after(shared_engine) as client, asyncio.TaskGroup() as group:
        asking = group.create_task(client.ask(client.holding(rid="whole")))
        await client.until(running=1)
        await client.abort(rid="whole")
        answer = await asking
        assert answer.status == 200
        body = orjson.loads(answer.body)
        assert body["id"] == "whole"
        assert body["choices"][0]["finish_reason"] == "abort"
        assert body["usage"]["prompt_tokens"] > 0


async def test_aborted_in_the_queue_costs_nothing(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client, asyncio.TaskGroup() as group:
        for index in range(2):
            group.create_task(client.told(client.holding(rid=f"hold-{index}")))
        await client.until(running=2)
        async with client.stream(client.holding(rid="queued")) as stream:
            await client.until(running=2, waiting=1)
            await client.abort(rid="queued")
            await stream.started()
            told = await stream.rest()
        assert told.finish == "abort"
        assert told.text == ""
        assert (told.usage["prompt_tokens"], told.usage["completion_tokens"]) == (0, 0)
        await client.abort(abort_all=True)


async def test_an_abort_needs_a_known_id_and_then_takes_all_that_start_with_it(
    shared_engine: EngineProcess,
) -> None:
    async with idle_after(shared_engine) as client, asyncio.TaskGroup() as group:
        for rid in ("twin", "twin-2"):
            group.create_task(client.told(client.holding(rid=rid)))
        await client.until(running=2)
        await client.abort(rid="twi")
        await client.abort(rid="")
        await client.abort()
        assert (await client.load())["num_running_reqs"] == 2
        await client.abort(rid="twin")
        await client.until(running=0, limit_s=SOON_S)


async def test_a_request_id_in_use_is_refused(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client, asyncio.TaskGroup() as group:
        group.create_task(client.told(client.holding(rid="used")))
        await client.until(running=1)
        answer = await client.ask(client.chat(rid="used", stream=True))
        assert answer.status == 400
        assert "Duplicate request ID detected: used" in answer.text
        await client.abort(rid="used")


async def test_a_client_that_leaves_its_stream_frees_the_slot(
    shared_engine: EngineProcess,
) -> None:
    async with idle_after(shared_engine) as client:
        async with client.stream(client.holding()) as stream:
            await stream.started()
            await stream.frame()
            stream.leave()
        await client.until(running=0, limit_s=SOON_S)


async def test_a_client_that_leaves_two_choices_frees_both(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        async with client.stream(client.holding(n=2)) as stream:
            await stream.started()
            await stream.frame()
            stream.leave()
        await client.until(running=0, limit_s=POLLED_S)


async def test_a_client_that_leaves_a_whole_answer_is_noticed_by_polling(
    shared_engine: EngineProcess,
) -> None:
    async with idle_after(shared_engine) as client:
        async with client.stream(client.holding(), streamed=False) as whole:
            await client.until(running=1)
            whole.leave()
        await client.until(running=0, limit_s=POLLED_S)


async def test_an_id_used_again_at_once_is_aborted_two_seconds_later(
    shared_engine: EngineProcess,
) -> None:
    """The engine cleans up after a stream by its id, whoever has it by then: never reuse one."""
    async with idle_after(shared_engine) as client:
        await client.told(client.chat(max_tokens=1, rid="again"))
        told = await client.told(client.holding(rid="again"))
        assert told.finish == "abort"
        assert told.usage["completion_tokens"] < 1_900
