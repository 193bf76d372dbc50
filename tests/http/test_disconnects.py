"""A client that leaves, in every phase: the worker is free at once and the bill is right."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import orjson
import pytest

from inferd.clock import monotonic
from inferd.inference import Outcome
from tests.fakes.engines import EngineProcess, RunningEngine
from tests.fakes.gateway import Gateway, gateway, until
from tests.http.raw_connection import ask, chat, client_of, holding

pytestmark = pytest.mark.real_time

FREE_S = 1.0
"""How soon a worker must be free; with n > 1 only the closed connection tells it."""
FREE_S_OF_MANY = 3.0


async def assert_free(inferd: Gateway, within_s: float = FREE_S) -> None:
    """The engine has stopped and nothing is held here, soon after a client left."""
    left = monotonic()
    await inferd.engine.until(running=0, waiting=0)
    await inferd.at_rest()
    assert monotonic() - left < within_s


async def counted(engine: RunningEngine) -> tuple[int, int]:
    stats = await engine.stats()
    return int(stats["prompt_tokens"]), int(stats["completion_tokens"])


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_before_the_first_token_frees_the_worker(
    tmp_path: Path, paced: EngineProcess, stream: bool
) -> None:
    async with gateway(tmp_path, paced) as inferd:
        await inferd.engine.fault("slow_first", seconds=30)
        async with client_of(inferd) as client:
            client.chat(chat(stream=stream))
            await inferd.engine.until(running=1)
            client.leave()
        await assert_free(inferd)
        row = await inferd.row()
        assert row.response_id in (await inferd.engine.stats())["aborted"]
    assert (row.outcome, row.completion_tokens) == (Outcome.CLIENT_LEFT, 0)


async def test_leaving_a_stream_pays_exactly_what_the_engine_made(
    tmp_path: Path, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, paced) as inferd:
        before = await counted(inferd.engine)
        async with client_of(inferd) as client:
            client.chat(holding())
            await client.head()
            chunks = await client.chunks(30)
            client.leave()
        await assert_free(inferd)
        row = await inferd.row()
        after = await counted(inferd.engine)
    seen = b"".join(chunks).count(b'"content":"')
    assert row.outcome == Outcome.CLIENT_LEFT
    assert not row.estimated
    assert row.completion_tokens >= seen - 1
    assert (row.prompt_tokens, row.completion_tokens) == (
        after[0] - before[0],
        after[1] - before[1],
    )


async def test_leaving_an_answer_that_does_not_stream_stops_it_and_pays_exactly(
    tmp_path: Path, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, paced) as inferd:
        before = await counted(inferd.engine)
        async with client_of(inferd) as client:
            client.chat(holding(stream=False))
            steps = (await inferd.engine.until(running=1))["steps"]
            await inferd.engine.until(steps=lambda done: done > steps + 30)
            client.leave()
        await assert_free(inferd)
        row = await inferd.row()
        after = await counted(inferd.engine)
    assert (row.outcome, row.estimated) == (Outcome.CLIENT_LEFT, False)
    assert row.completion_tokens == after[1] - before[1] > 20


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_several_choices_frees_the_worker_without_an_abort_by_id(
    tmp_path: Path, paced: EngineProcess, stream: bool
) -> None:
    async with gateway(tmp_path, paced) as inferd:
        async with client_of(inferd) as client:
            client.chat(holding(n=3, stream=stream))
            await inferd.engine.until(running=3)
            if stream:
                await client.head()
                await client.chunks(30)
            client.leave()
        await assert_free(inferd, FREE_S_OF_MANY)
        row = await inferd.row()
    assert (row.outcome, row.estimated) == (Outcome.CLIENT_LEFT, True)
    assert row.completion_tokens >= 24 * stream


async def test_leaving_the_queue_costs_nothing_and_lets_the_next_one_in(
    tmp_path: Path, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, paced, slots=1) as inferd:
        async with (
            client_of(inferd) as first,
            client_of(inferd) as second,
            client_of(inferd) as third,
        ):
            first.chat(holding())
            await first.head()
            second.chat(chat("I shall not wait"))
            await until(lambda: inferd.held().get("waiting for chat@1") == 1)
            third.chat(chat("I shall", max_tokens=3))
            await until(lambda: inferd.held().get("waiting for chat@1") == 2)
            second.leave()
            await until(lambda: inferd.held().get("waiting for chat@1") == 1)
            first.leave()
            assert (await third.answer()).status == 200
        rows = {row.attempts: row for row in await inferd.rows()}
        sent = [
            entry["body"]["messages"][0]["content"]
            for entry in (await inferd.engine.stats())["requests"]
        ]
    assert rows[0].outcome == Outcome.CLIENT_LEFT
    assert (rows[0].prompt_tokens, rows[0].completion_tokens) == (0, 0)
    assert "I shall not wait" not in sent


async def test_an_engine_that_ignores_leaving_is_told_by_id_as_well(
    tmp_path: Path, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, paced) as inferd:
        await inferd.engine.fault("ignore_disconnect")
        async with client_of(inferd) as client:
            client.chat(holding())
            await client.head()
            client.reset()
        await assert_free(inferd)
        assert (await inferd.row()).outcome == Outcome.CLIENT_LEFT


async def test_an_engine_that_ignores_aborts_holds_nothing_here_and_is_billed_by_what_was_seen(
    tmp_path: Path, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, paced) as inferd:
        await inferd.engine.fault("ignore_abort")
        await inferd.engine.fault("ignore_disconnect")
        async with client_of(inferd) as client:
            client.chat(holding())
            await client.head()
            await client.chunks(20)
            client.leave()
        await inferd.at_rest(within_s=2.0)
        row = await inferd.row()
        exposition = await inferd.metrics()
    assert row.estimated
    assert row.completion_tokens >= 18
    assert row.prompt_tokens > 0
    assert 'outcome="confirmed",worker="chat-1-a1"} 1.0' in exposition


async def test_one_that_leaves_does_not_take_its_neighbour_along(
    tmp_path: Path, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, paced) as inferd, client_of(inferd) as stays:
        stays.chat(holding("Stay", max_tokens=120))
        await stays.head()
        async with client_of(inferd) as leaves:
            leaves.chat(holding("Leave"))
            await leaves.head()
            leaves.leave()
        answer = await stays.rest()
    assert answer.told.done
    assert answer.told.finish == "length"


async def test_a_client_that_pipelined_another_request_is_missed_all_the_same(
    tmp_path: Path, paced: EngineProcess
) -> None:
    """The server knows only the last request of a connection: the first must hear of its end."""
    async with gateway(tmp_path, paced) as inferd:
        async with client_of(inferd) as client:
            client.chat(holding())
            await client.head()
            client.request("GET", "/v1/models")
            await client.chunks(5)
            client.leave()
        await assert_free(inferd)
        assert (await inferd.row()).outcome == Outcome.CLIENT_LEFT


async def leave_after_connecting(inferd: Gateway) -> None:
    async with client_of(inferd):
        pass


async def leave_in_the_head(inferd: Gateway) -> None:
    async with client_of(inferd) as client:
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthor")


async def leave_in_the_body(inferd: Gateway) -> None:
    async with client_of(inferd) as client:
        client.request("POST", "/v1/chat/completions", b"{", {"content-length": "100"})


async def leave_at_once(inferd: Gateway) -> None:
    async with client_of(inferd) as client:
        client.chat(holding())


async def leave_after_the_head(inferd: Gateway) -> None:
    async with client_of(inferd) as client:
        client.chat(holding())
        await client.head()


async def leave_in_the_middle(inferd: Gateway) -> None:
    async with client_of(inferd) as client:
        client.chat(holding())
        await client.head()
        await client.chunks(6)
        client.reset()


PHASES = [
    leave_after_connecting,
    leave_in_the_head,
    leave_in_the_body,
    leave_at_once,
    leave_after_the_head,
    leave_in_the_middle,
]


async def test_a_hundred_clients_that_leave_in_any_phase_hold_nothing(
    tmp_path: Path, paced: EngineProcess
) -> None:
    limits = {"tokens_per_s": 1_000, "burst_tokens": 1_000_000}
    async with gateway(tmp_path, paced, slots=8, team=limits) as inferd:
        for leaving in PHASES:
            async with asyncio.TaskGroup() as clients:
                for _ in range(100):
                    clients.create_task(leaving(inferd))
            await inferd.at_rest()
            await inferd.engine.until(running=0, waiting=0)
            assert (await ask(inferd, chat(max_tokens=1))).status == 200, leaving
        outcomes = Counter(row.outcome for row in await inferd.rows())
    assert outcomes.keys() == {Outcome.CLIENT_LEFT, Outcome.COMPLETED}
    assert outcomes[Outcome.COMPLETED] == len(PHASES)
    assert outcomes[Outcome.CLIENT_LEFT] >= 2 * 100


async def test_a_hundred_bodies_that_are_wrong_leave_room_for_a_hundred_that_are_right(
    tmp_path: Path, fast: EngineProcess
) -> None:
    wrong = [b"{", b"[]", b'{"model":"chat"}', orjson.dumps(chat(temperature="hot"))]
    limits = {
        "tokens_per_s": 100_000,
        "burst_tokens": 100_000,
        "requests_per_s": 1,
        "burst_requests": 100,
    }
    async with gateway(tmp_path, fast, slots=16, team=limits) as inferd:
        async with client_of(inferd) as client:
            for number in range(100):
                client.request("POST", "/v1/chat/completions", wrong[number % len(wrong)])
                assert (await client.answer()).status == 400
            for _ in range(100):
                client.chat(chat(max_tokens=1))
                assert (await client.answer()).status == 200
        assert len(await inferd.rows()) == 100
