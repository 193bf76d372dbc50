"""The bytes of an answer: what strict clients of the public API rely on, frame by frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import gateway
from tests.http.raw_connection import Answer, ask, chat

pytestmark = pytest.mark.real_time

USAGE = {"stream_options": {"include_usage": True}}
COMMON = ("id", "object", "created", "model")


def chunks_of(answer: Answer) -> list[dict[str, Any]]:
    """The chunks of a stream that ended well."""
    assert answer.status == 200
    assert answer.complete
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.body.count(b"[DONE]") == 1
    told = answer.told
    assert told.error is None
    return told.chunks


def choices_of(chunks: list[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def assert_one_life(choices: list[dict[str, Any]]) -> None:
    """A choice opens with its role, closes with its reason, and does both once."""
    assert choices[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert choices[-1]["finish_reason"] == "length"
    assert all(choice["finish_reason"] is None for choice in choices[:-1])


async def test_a_stream_is_what_the_contract_says(tmp_path: Path, fast: EngineProcess) -> None:
    async with gateway(tmp_path, fast) as inferd:
        for count in (1, 3):
            body = chat(max_tokens=20, stream=True, n=count)
            plain = await ask(inferd, body)
            with_usage = await ask(inferd, {**body, **USAGE})
            for answer in (plain, with_usage):
                assert_stream(answer, count)
            assert all("usage" not in chunk for chunk in chunks_of(plain))
            *others, last = chunks_of(with_usage)
            assert all(chunk["usage"] is None for chunk in others)
            assert last["choices"] == []
            usage = last["usage"]
            unasked, row = (await inferd.rows())[-2:]
            assert usage["completion_tokens"] == 20 * count == row.completion_tokens
            assert usage["prompt_tokens"] == row.prompt_tokens
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == row.cached_tokens
            assert (unasked.completion_tokens, unasked.estimated) == (20 * count, False)


def assert_stream(answer: Answer, count: int) -> None:
    """Head and order of a stream with so many choices."""
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    chunks = chunks_of(answer)
    assert len({tuple(chunk[key] for key in COMMON) for chunk in chunks}) == 1
    assert chunks[0]["id"].startswith("chatcmpl-")
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert [chunk["choices"][0]["index"] for chunk in chunks[:count]] == list(range(count))
    for index in range(count):
        assert_one_life(choices_of(chunks, index))


async def test_a_whole_answer_holds_what_clients_read_and_nothing_of_the_engine(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        answer = await ask(inferd, chat(max_tokens=5, n=2, metadata={"run": "7"}))
        row = await inferd.row()
    body = answer.json
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert {key: body[key] for key in ("object", "model", "service_tier", "metadata")} == {
        "object": "chat.completion",
        "model": "chat",
        "service_tier": "default",
        "metadata": {"run": "7"},
    }
    assert body["id"] == row.response_id
    assert "system_fingerprint" in body
    for index, choice in enumerate(body["choices"]):
        assert set(choice) == {"index", "message", "logprobs", "finish_reason"}
        assert (choice["index"], choice["finish_reason"]) == (index, "length")
        assert set(choice["message"]) == {"role", "content", "refusal", "annotations"}
    assert body["usage"]["completion_tokens"] == 10 == row.completion_tokens
    assert "reasoning_tokens" not in body["usage"]


async def test_characters_of_many_bytes_arrive_whole(tmp_path: Path, fast: EngineProcess) -> None:
    """Each frame is decoded alone: half a character in one of them would not decode."""
    body = chat("Some emoji and thai please [tokens 60]", max_tokens=80)
    async with gateway(tmp_path, fast) as inferd:
        streamed = (await ask(inferd, {**body, "stream": True})).told.text
        whole = (await ask(inferd, body)).json["choices"][0]["message"]["content"]
    assert streamed == whole
    assert "\ufffd" not in whole
    assert any(ord(character) > 0xFFFF for character in whole)
    assert any(0x0E00 <= ord(character) < 0x0E80 for character in whole)


async def test_the_logprobs_of_a_chunk_are_those_of_its_tokens(
    tmp_path: Path, fast: EngineProcess
) -> None:
    body = chat(max_tokens=12, stream=True, logprobs=True, top_logprobs=2)
    async with gateway(tmp_path, fast) as inferd:
        streamed = await ask(inferd, body)
        whole = await ask(inferd, {**body, "stream": False})
    choices = choices_of(chunks_of(streamed), 0)
    told = [choice for choice in choices if choice["logprobs"]]
    tokens = [token for choice in told for token in choice["logprobs"]["content"]]
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)
    for choice in told:
        text = "".join(token["token"] for token in choice["logprobs"]["content"])
        assert text == choice["delta"]["content"]
    assert whole.json["choices"][0]["logprobs"]["content"] == tokens


async def test_an_alias_is_answered_under_the_name_it_was_asked_by(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        names = [
            (await ask(inferd, chat(model=name, max_tokens=2))).json["model"]
            for name in ("chat", "gpt-test", "chat@1")
        ]
        rows = await inferd.rows()
    assert names == ["chat", "gpt-test", "chat@1"]
    assert {(row.model, row.version, row.pool) for row in rows} == {("chat", "1", "chat@1")}


async def test_the_engine_is_asked_for_nothing_that_a_client_may_not_set(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        refused = [
            (await ask(inferd, chat(**{name: value}))).error
            for name, value in {"rid": "x", "extra_key": "y", "input_ids": [1]}.items()
        ]
        await ask(inferd, chat("Only this one is sent", top_k=3, priority="batch", max_tokens=2))
        sent = (await inferd.engine.stats())["requests"][-1]["body"]
    assert [error["code"] for error in refused] == ["unknown_parameter"] * 3
    assert sent["messages"][0]["content"] == "Only this one is sent"
    assert sent["top_k"] == 3
    assert sent["priority"] == -100
    assert sent["extra_key"] == "search"
    assert sent["max_tokens"] == 2
    assert len(sent["rid"]) == len("chatcmpl-") + 32
