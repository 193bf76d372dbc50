"""Workers that fail: what was not begun goes to another, what was is told, nothing comes twice."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from inferd.clock import monotonic
from inferd.inference import Outcome
from tests.fakes.engines import EngineProcess, launch_fake, standing
from tests.fakes.gateway import MODEL, POOL, Gateway, attached, gateway, until
from tests.http.conftest import FAST, PACED
from tests.http.raw_connection import Answer, ask, chat, client_of, holding
from tests.http.test_refusals import assert_error

pytestmark = pytest.mark.real_time

TOO_LONG = "The input (9 tokens) is longer than the model's context length (8 tokens)."
FULL = {"code": 503, "message": "The request queue is full.", "type": "SERVICE_UNAVAILABLE"}


def assert_told(answer: Answer, code: str = "worker_unavailable") -> dict[str, Any]:
    """A stream that failed after its start: the error is its last event. Returns the usage."""
    assert answer.status in {0, 200}
    assert answer.complete
    assert b"[DONE]" not in answer.body
    told = answer.told
    assert told.error is not None
    assert told.events[-1] == {"error": told.error}
    assert set(told.error) >= {"message", "type", "param", "code"}
    assert (told.error["type"], told.error["code"]) == ("server_error", code)
    usage = told.error["usage"]
    assert isinstance(usage, dict)
    return usage


def assert_refused(answer: Answer, status: int, code: str) -> None:
    """An error before the first event: a real status, and nothing of the engine's own words."""
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.headers["x-inferd-source"] == "worker"
    told = answer.error["message"].lower()
    assert not any(word in told for word in ("cuda", "traceback", ".py", "/opt", "scheduler"))


async def asked(inferd: Gateway) -> list[int]:
    """How many generations each engine has been asked for."""
    return [
        (await engine.stats())["counts"].get("POST /v1/chat/completions", 0)
        for engine in inferd.engines
    ]


async def test_a_worker_killed_in_the_middle_of_streams_is_told_with_what_they_cost(
    tmp_path: Path,
) -> None:
    with standing(launch_fake(tmp_path, model=MODEL, speed=PACED)) as mortal:
        async with gateway(tmp_path, mortal) as inferd, inferd.openai() as sdk:
            async with client_of(inferd) as client:
                client.chat(holding())
                await client.head()
                seen = await client.chunks(10)
                stream = await sdk.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
                )
                read = await anext(aiter(stream))
                inferd.engine.signal(signal.SIGKILL)
                with pytest.raises(openai.APIError) as caught:
                    [_ async for _ in stream]
                answer = await client.rest()
            usage = assert_told(answer)
            refused = await ask(inferd, chat())
            rows = await inferd.rows()
    assert read.choices
    assert caught.value.code == "worker_unavailable"
    assert isinstance(caught.value.body, dict)
    frames = b"".join(seen).count(b"data: ") + answer.body.count(b"data: ") - 2
    assert usage["completion_tokens"] == frames
    assert usage["prompt_tokens"] > 0
    assert_refused(refused, 502, "worker_unavailable")
    assert [row.outcome for row in rows] == [Outcome.FAILED] * 3
    assert [row.estimated for row in rows] == [True, True, False]
    assert rows[0].completion_tokens == usage["completion_tokens"]
    assert rows[2].completion_tokens == rows[2].prompt_tokens == 0


async def test_those_who_wait_for_a_worker_that_dies_are_served_by_another(
    tmp_path: Path, fast: EngineProcess
) -> None:
    with standing(launch_fake(tmp_path, model=MODEL, speed=PACED)) as mortal:
        async with gateway(tmp_path, mortal, slots=16) as inferd:
            await inferd.engine.fault("slow_first", seconds=60)
            async with asyncio.TaskGroup() as clients:
                answers = [
                    clients.create_task(ask(inferd, chat(f"{n}", max_tokens=5, stream=n % 2 == 0)))
                    for n in range(10)
                ]
                await inferd.engine.until(running=10)
                await inferd.reload(attached(mortal, fast, slots=16))
                await inferd.until_ready(2)
                killed = monotonic()
                inferd.engine.signal(signal.SIGKILL)
            assert monotonic() - killed < 2.0
            rows = await inferd.rows()
    assert [answer.result().status for answer in answers] == [200] * 10
    assert [(row.worker, row.attempts) for row in rows] == [("chat-1-a2", 2)] * 10
    assert all(row.outcome == Outcome.COMPLETED and not row.estimated for row in rows)


async def test_those_who_wait_for_the_only_worker_when_it_dies_hear_it_at_once(
    tmp_path: Path,
) -> None:
    with standing(launch_fake(tmp_path, model=MODEL, speed=PACED)) as mortal:
        async with gateway(tmp_path, mortal, slots=4) as inferd:
            await inferd.engine.fault("slow_first", seconds=60)
            async with asyncio.TaskGroup() as clients:
                answers = [
                    clients.create_task(ask(inferd, chat(f"{n}", stream=n % 2 == 0)))
                    for n in range(10)
                ]
                await inferd.engine.until(running=4)
                killed = monotonic()
                inferd.engine.signal(signal.SIGKILL)
            assert monotonic() - killed < 2.0
            rows = await inferd.rows()
    assert {answer.result().status for answer in answers} <= {502, 503}
    assert all(row.outcome in {Outcome.FAILED, Outcome.REFUSED} for row in rows)
    assert sum(row.prompt_tokens + row.completion_tokens for row in rows) == 0


BREAKS: list[dict[str, Any]] = [
    {"kind": "reset"},
    {"kind": "cut"},
    {"kind": "cut", "clean": True},
    {"kind": "error_frame"},
    {"kind": "error_frame", **FULL},
    {"kind": "garbage"},
    {"kind": "garbage", "data": "<html>Bad gateway</html>"},
]


@pytest.mark.parametrize("include_usage", [True, False])
async def test_a_stream_that_breaks_is_told_and_never_begun_again(
    tmp_path: Path, paced: EngineProcess, twin: EngineProcess, include_usage: bool
) -> None:
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    async with gateway(tmp_path, paced, twin) as inferd:
        for fault in BREAKS:
            for engine in inferd.engines:
                await engine.fault("clear")
                await engine.fault(**fault, after=5)
            before = await asked(inferd)
            answer = await ask(inferd, holding(max_tokens=30, **options))
            usage = assert_told(answer)
            row = (await inferd.rows())[-1]
            after = await asked(inferd)
            assert sum(after) - sum(before) == 1, fault
            assert usage["completion_tokens"] >= answer.body.count(b'"content":"') - 1
            assert (row.outcome, row.attempts) == (Outcome.FAILED, 1)
            assert row.completion_tokens >= 3, fault


LOST = (502, "worker_unavailable")
OVERLOADED = (429, "overloaded")
BEFORE_THE_FIRST_EVENT: list[tuple[dict[str, Any], tuple[int, str]]] = [
    ({"kind": "error", "status": 500}, LOST),
    ({"kind": "error", "status": 401, "message": "Unauthorized"}, LOST),
    ({"kind": "error", "status": 503, "message": FULL["message"]}, OVERLOADED),
    ({"kind": "error_frame", **FULL}, OVERLOADED),
    ({"kind": "error_frame", "code": 500}, LOST),
    ({"kind": "empty"}, LOST),
    ({"kind": "cut"}, LOST),
    ({"kind": "reset"}, LOST),
    ({"kind": "not_http"}, LOST),
    ({"kind": "garbage"}, LOST),
    ({"kind": "garbage", "data": "[]"}, LOST),
    ({"kind": "garbage", "data": '{"choices":"x"}'}, LOST),
    ({"kind": "garbage", "data": '{"choices":[7]}'}, LOST),
    ({"kind": "garbage", "data": '{"choices":[{"index":3}]}'}, LOST),
    ({"kind": "garbage", "data": '{"choices":[{"delta":"x"}]}'}, LOST),
    ({"kind": "garbage", "data": '{"choices":[{"delta":{"tool_calls":5}}]}'}, LOST),
]


async def test_a_worker_that_fails_before_its_first_event_is_replaced_or_told_as_a_status(
    tmp_path: Path, fast: EngineProcess, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, fast, paced) as inferd:
        for fault, (status, code) in BEFORE_THE_FIRST_EVENT:
            for engine in inferd.engines:
                await engine.fault("clear")
            await inferd.engines[0].fault(**fault)
            for number in range(2):
                answer = await ask(inferd, chat(f"{number}", max_tokens=3, stream=True))
                assert answer.told.done, fault
            await inferd.engines[1].fault(**fault)
            before = await asked(inferd)
            answer = await ask(inferd, chat(max_tokens=3, stream=True))
            after = await asked(inferd)
            *replaced, told = (await inferd.rows())[-3:]
            assert_refused(answer, status, code)
            assert ("retry-after" in answer.headers) == (status == 429)
            assert all(new > old for new, old in zip(after, before, strict=True)), fault
            assert {row.worker for row in replaced} == {"chat-1-a2"}
            assert (told.outcome, told.error_code, told.attempts) == (Outcome.FAILED, code, 2)
            assert told.completion_tokens == 0, fault


async def test_a_whole_answer_that_broke_off_is_asked_for_again(
    tmp_path: Path, fast: EngineProcess
) -> None:
    with standing(launch_fake(tmp_path, model=MODEL, speed=PACED)) as mortal:
        async with gateway(tmp_path, mortal) as inferd:
            async with asyncio.TaskGroup() as clients:
                answer = clients.create_task(ask(inferd, holding(stream=False, max_tokens=200)))
                steps = (await inferd.engine.until(running=1))["steps"]
                await inferd.engine.until(steps=lambda done: done > steps + 5)
                await inferd.reload(attached(mortal, fast))
                await inferd.until_ready(2)
                inferd.engine.signal(signal.SIGKILL)
            row = await inferd.row()
    assert answer.result().status == 200
    assert answer.result().json["usage"]["completion_tokens"] == 200 == row.completion_tokens
    assert (row.worker, row.attempts) == ("chat-1-a2", 2)


async def test_an_error_that_comes_for_a_client_that_has_left_harms_nobody(
    tmp_path: Path, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, paced) as inferd:
        for kind in ("ignore_abort", "ignore_disconnect"):
            await inferd.engine.fault(kind)
        await inferd.engine.fault("error_frame", after=30, code=400, message=TOO_LONG, times=1)
        async with client_of(inferd) as client:
            client.chat(holding())
            await client.head()
            await client.chunks(4)
            client.leave()
        assert (await inferd.row()).outcome == Outcome.CLIENT_LEFT
        assert (await ask(inferd, chat(max_tokens=2))).status == 200


WRITTEN_ODDLY: list[dict[str, Any]] = [
    {"kind": "crlf"},
    {"kind": "batch", "frames": 7},
    {"kind": "batch", "frames": 1_000},
    {"kind": "dribble", "seconds": 0},
]


async def test_the_same_text_arrives_however_the_bytes_come(
    tmp_path: Path, fast: EngineProcess
) -> None:
    body = chat(
        "Some emoji and thai please [tokens 30]",
        stream=True,
        stream_options={"include_usage": True},
    )
    async with gateway(tmp_path, fast) as inferd:
        plain = await ask(inferd, body)
        count = plain.told.usage["completion_tokens"]
        for fault in WRITTEN_ODDLY:
            await inferd.engine.fault("clear")
            await inferd.engine.fault(**fault)
            other = await ask(inferd, body)
            assert other.told.done, fault
            assert other.told.text == plain.told.text
            assert len(other.told.events) == len(plain.told.events)
            assert other.told.usage["completion_tokens"] == count
        rows = await inferd.rows()
    assert "\ufffd" not in plain.told.text
    assert {row.completion_tokens for row in rows} == {count}
    assert not any(row.estimated for row in rows)


async def test_usage_that_the_engine_does_not_tell_is_estimated_and_the_client_hears_the_same(
    tmp_path: Path, fast: EngineProcess
) -> None:
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    async with gateway(tmp_path, fast) as inferd:
        for mode in ("zero", "missing"):
            await inferd.engine.fault("clear")
            await inferd.engine.fault("usage", mode=mode)
            streamed = await ask(inferd, chat(max_tokens=12, **stream))
            whole = await ask(inferd, chat(max_tokens=12))
            rows = (await inferd.rows())[-2:]
            for row, usage in zip(rows, (streamed.told.usage, whole.json["usage"]), strict=True):
                assert (row.outcome, row.estimated) == (Outcome.COMPLETED, True)
                assert row.prompt_tokens > 0
                assert row.completion_tokens >= 8
                assert (usage["prompt_tokens"], usage["completion_tokens"]) == (
                    row.prompt_tokens,
                    row.completion_tokens,
                )


async def test_one_frame_of_a_megabyte_passes_and_one_without_end_does_not(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        await inferd.engine.fault("huge", after=2, bytes=1 << 20, times=1)
        large = await ask(inferd, chat(max_tokens=4, stream=True))
        await inferd.engine.fault("huge", after=2, bytes=5 << 20, times=1)
        endless = await ask(inferd, chat(max_tokens=4, stream=True))
    assert large.told.done
    assert max(map(len, large.told.texts)) == 1 << 20
    assert_told(endless)


async def test_a_dead_worker_is_shown_and_one_that_comes_back_is_used_again(
    tmp_path: Path, fast: EngineProcess
) -> None:
    with standing(launch_fake(tmp_path, model=MODEL)) as mortal:
        async with gateway(tmp_path, mortal, fast) as inferd:
            inferd.engines[0].signal(signal.SIGKILL)
            states = inferd.app.node.fleet.workers
            await until(lambda: states["chat-1-a1"].state == "failed")
            told = await inferd.ask_admin("GET", "/admin/v1/status")
    (pool,) = told["pools"]
    dead, alive = pool["workers"]
    assert (pool["pool"], pool["state"]) == (POOL, "ready")
    assert (dead["state"], alive["state"]) == ("failed", "ready")
    assert "does not accept connections" in dead["reason"]


async def test_a_worker_behind_a_key_is_used_with_it_and_told_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIGHT_KEY", "engine-secret-1")
    monkeypatch.setenv("WRONG_KEY", "engine-secret-2")
    process = launch_fake(tmp_path, model=MODEL, speed=FAST, api_key="engine-secret-1")
    with standing(process):
        url = process.base_url
        right, wrong = ({"url": url, "key_env": name} for name in ("RIGHT_KEY", "WRONG_KEY"))
        async with gateway(tmp_path, workers=[right], ready=1) as inferd:
            assert (await ask(inferd, chat(max_tokens=2))).status == 200
            await inferd.reload([wrong])
            workers = inferd.app.node.fleet.workers
            await until(lambda: workers["chat-1-a1"].state == "failed")
            refused = await ask(inferd, chat(max_tokens=2))
            told = await inferd.ask_admin("GET", "/admin/v1/status")
    assert_error(refused, 503, "no_worker", "server_error")
    reason = told["pools"][0]["workers"][0]["reason"]
    assert "refuses the key" in reason
    assert "engine-secret" not in str(told)


async def test_a_schema_that_the_engine_cannot_enforce_is_never_answered_freely(
    tmp_path: Path, fast: EngineProcess
) -> None:
    schema = {"type": "object", "properties": {"a": False}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with gateway(tmp_path, fast) as inferd:
        for stream in (True, False):
            answer = await ask(inferd, chat(response_format=wanted, stream=stream))
            error = assert_error(answer, 400, "invalid_json_schema")
            assert error["param"] == "response_format"
            assert "/project" not in error["message"]
        rows = await inferd.rows()
    assert sum(row.prompt_tokens + row.completion_tokens for row in rows) == 0
