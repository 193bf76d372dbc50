"""Requests that are refused for now: buckets, queues, deadlines, no worker."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from inferd.clock import monotonic
from inferd.inference import Outcome
from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import MODEL, attached, gateway, until
from tests.http.raw_connection import CHAT_PATH, Answer, ask, chat, client_of, holding
from tests.http.test_refusals import assert_error

pytestmark = pytest.mark.real_time

SHORT = {"output_tokens_max": 150}
"""A bucket must hold what a request without max_tokens claims."""
GO_DURATION = re.compile(r"(\d+h)?(\d+m)?\d+(\.\d+)?m?s")


def remaining(answer: Answer, kind: str = "tokens") -> int:
    return int(answer.headers[f"x-ratelimit-remaining-{kind}"])


async def test_the_rate_limit_headers_fall_recover_and_say_when(
    tmp_path: Path, fast: EngineProcess
) -> None:
    limits: dict[str, float] = {"tokens_per_s": 100, "burst_tokens": 3_000}
    limits |= {"requests_per_s": 0.01, "burst_requests": 9}
    async with gateway(tmp_path, fast, team=limits) as inferd:
        began = monotonic()
        first = await ask(inferd, chat(max_tokens=400, ignore_eos=True))
        second = await ask(inferd, chat(max_tokens=400, ignore_eos=True))
        refilled = limits["tokens_per_s"] * (monotonic() - began)
        await asyncio.sleep(0.6)
        async with client_of(inferd) as client:
            client.request("POST", CHAT_PATH, b"{")
            third = await client.answer()
    for answer in (first, second, third):
        assert answer.headers["x-ratelimit-limit-tokens"] == "3000"
        assert answer.headers["x-ratelimit-limit-requests"] == "9"
        for kind in ("tokens", "requests"):
            assert GO_DURATION.fullmatch(answer.headers[f"x-ratelimit-reset-{kind}"])
    assert 2_400 < remaining(first) < 2_620
    assert remaining(second) < remaining(first) - 380 + refilled
    assert remaining(third) > min(remaining(second) + 40, 2_999), (
        "a request that was refused costs nothing"
    )
    assert [remaining(answer, "requests") for answer in (first, second)] == [8, 7]


async def test_parallel_requests_share_one_bucket_and_each_is_charged_before_it_runs(
    tmp_path: Path, paced: EngineProcess
) -> None:
    """Twenty that claim some 300 tokens each of a bucket of 1,000: three are let in."""
    limits = {"tokens_per_s": 1, "burst_tokens": 1_000}
    async with gateway(tmp_path, paced, slots=32, team=limits, model=SHORT) as inferd:
        async with asyncio.TaskGroup() as clients:
            body = chat("word " * 120, max_tokens=130, ignore_eos=True)
            answers = [clients.create_task(ask(inferd, body)) for _ in range(20)]
        statuses = [answer.result().status for answer in answers]
        rows = await inferd.rows()
    assert (statuses.count(200), statuses.count(429)) == (3, 17)
    assert sum(row.prompt_tokens + row.completion_tokens for row in rows) <= 1_000
    assert [row.outcome for row in rows].count(Outcome.REFUSED) == 17


async def test_waiting_as_long_as_retry_after_says_succeeds(
    tmp_path: Path, fast: EngineProcess
) -> None:
    limits = {"tokens_per_s": 100, "burst_tokens": 200}
    async with gateway(tmp_path, fast, team=limits, model=SHORT) as inferd:
        body = chat(max_tokens=150, ignore_eos=True)
        assert (await ask(inferd, body)).status == 200
        refused = await ask(inferd, body)
        error = assert_error(refused, 429, "rate_limit_exceeded", "tokens")
        wait_s = int(refused.headers["retry-after"])
        assert "x-should-retry" not in refused.headers
        assert "search" in error["message"]
        await asyncio.sleep(wait_s)
        assert (await ask(inferd, body)).status == 200
        never = await ask(inferd, chat(max_tokens=150, n=2))
        assert_error(never, 400, "invalid_value")
        rows = await inferd.rows()
    assert 1 <= wait_s <= 2
    assert [row.outcome for row in rows] == ["completed", "refused", "completed", "refused"]


async def test_a_wait_that_clients_would_cut_short_says_do_not_retry(
    tmp_path: Path, fast: EngineProcess
) -> None:
    limits = {"requests_per_s": 0.01, "burst_requests": 1}
    async with gateway(tmp_path, fast, team=limits) as inferd:
        assert (await ask(inferd, chat(max_tokens=1))).status == 200
        refused = await ask(inferd, chat(max_tokens=1))
    assert_error(refused, 429, "rate_limit_exceeded", "requests")
    assert 90 <= int(refused.headers["retry-after"]) <= 100
    assert refused.headers["x-should-retry"] == "false"


async def test_a_full_queue_and_a_wait_that_is_too_long(
    tmp_path: Path, paced: EngineProcess
) -> None:
    queue = {"waiting_max": 2, "waiting_per_team_max": 2, "wait_s_max": 0.6}
    async with gateway(tmp_path, paced, slots=1, queue=queue) as inferd:
        async with client_of(inferd) as holder:
            holder.chat(holding())
            await holder.head()
            async with asyncio.TaskGroup() as clients:
                began = monotonic()
                waiting = [
                    clients.create_task(ask(inferd, chat(stream=stream)))
                    for stream in (True, False)
                ]
                await until(lambda: inferd.held().get("waiting for chat@1") == 2)
                full = await ask(inferd, chat())
            waited_s = monotonic() - began
            told = await inferd.ask_admin("GET", "/admin/v1/status")
        rows = await inferd.rows()
    for answer in (full, *(one.result() for one in waiting)):
        error = assert_error(answer, 429, "overloaded", "server_error")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert "chat@1" in error["message"]
    assert 0.6 <= waited_s < 5, "the queue's patience, not the request's deadline of 30 s"
    assert told["pools"][0]["waiting"] == {"interactive": 0, "batch": 0}
    refused = [row for row in rows if row.outcome == Outcome.REFUSED]
    assert len(refused) == 3
    assert sum(row.prompt_tokens for row in refused) == 0
    assert sorted(row.queue_wait_s > 0.5 for row in refused) == [False, True, True]


async def test_without_a_worker_it_is_503_and_the_model_says_so(tmp_path: Path) -> None:
    nobody = [{"url": "http://127.0.0.1:9"}]
    async with gateway(tmp_path, workers=nobody, ready=0) as inferd, inferd.openai() as client:
        answer = await ask(inferd, chat(stream=True))
        error = assert_error(answer, 503, "no_worker", "server_error")
        model = await client.models.retrieve(MODEL)
        row = await inferd.row()
    assert answer.headers["retry-after"] == "10"
    assert answer.headers["x-inferd-source"] == "gateway"
    assert "chat@1" in error["message"]
    assert model.model_extra is not None
    assert model.model_extra["state"] == "loading"
    assert (row.outcome, row.attempts) == (Outcome.REFUSED, 0)


async def test_a_deadline_is_a_504_before_the_first_event_and_the_last_event_after_it(
    tmp_path: Path, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, paced, server={"request_deadline_s": 1.0}) as inferd:
        await inferd.engine.fault("slow_first", match="Be late", seconds=30)
        await inferd.engine.fault("silent", match="Be silent", after=5)
        async with asyncio.TaskGroup() as clients:
            late = [
                clients.create_task(ask(inferd, chat("Be late", stream=stream)))
                for stream in (True, False)
            ]
            begun = [
                clients.create_task(ask(inferd, holding(content)))
                for content in ("Be silent", "Go on")
            ]
        await inferd.engine.until(running=0)
        rows = await inferd.rows()
    for task in late:
        assert_error(task.result(), 504, "deadline_exceeded", "server_error")
        assert task.result().headers["x-should-retry"] == "false"
    usages = []
    for task in begun:
        told = task.result().told
        assert task.result().complete
        assert told.error is not None
        assert told.error["code"] == "deadline_exceeded"
        assert not told.done
        usages.append(told.error["usage"]["completion_tokens"])
    assert min(usages) >= 4
    assert {(row.outcome, row.error_code) for row in rows} == {
        (Outcome.FAILED, "deadline_exceeded")
    }
    assert sum(row.completion_tokens for row in rows) >= sum(usages)


async def test_an_engine_that_hangs_is_waited_for_until_the_deadline_and_no_longer(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast, server={"request_deadline_s": 1.0}) as inferd:
        await inferd.engine.fault("hang", probes=True)
        answer = await ask(inferd, chat())
        await inferd.at_rest(within_s=2.0)
    assert_error(answer, 504, "deadline_exceeded", "server_error")


async def test_a_whole_answer_is_given_up_when_the_sdk_would_hang_up_and_a_stream_is_not(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        for patience, status in (("0.4", 504), ("-1", 200), ("nan", 200), ("600", 200)):
            await inferd.engine.fault("slow_first", seconds=0.7, times=1)
            answer = await ask(inferd, chat(max_tokens=1), {"x-stainless-read-timeout": patience})
            assert answer.status == status, patience
            await inferd.at_rest()
            await inferd.engine.fault("clear")
        await inferd.engine.fault("slow_first", seconds=0.7, times=1)
        body = chat(max_tokens=1, stream=True)
        streamed = await ask(inferd, body, {"x-stainless-read-timeout": "0.4"})
    assert streamed.told.done


async def test_the_tier_that_is_used_is_echoed_and_only_some_teams_have_a_higher_one(
    tmp_path: Path, fast: EngineProcess
) -> None:
    asked = ("auto", "flex", "scale", "priority", "fast")
    async with gateway(tmp_path, fast) as inferd:

        async def tiers() -> dict[str, str]:
            answers = {
                tier: await ask(inferd, chat(max_tokens=1, service_tier=tier)) for tier in asked
            }
            return {tier: answer.json["service_tier"] for tier, answer in answers.items()}

        plain = await tiers()
        await inferd.reload(attached(fast), team={"priority_tier_rank": 7})
        higher = await tiers()
        batch = await ask(inferd, chat(max_tokens=1, service_tier="fast", priority="batch"))
    assert plain == dict.fromkeys(asked, "default") | {"flex": "flex"}
    assert higher == plain | {"priority": "priority", "fast": "priority"}
    assert batch.json["service_tier"] == "flex"
