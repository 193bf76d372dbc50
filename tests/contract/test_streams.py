"""What a streamed and a whole answer look like, on both engines."""

from __future__ import annotations

import orjson
import pytest

from tests.contract.client import idle_after
from tests.fakes.engines import EngineProcess

pytestmark = pytest.mark.real_time


async def test_a_stream_is_role_then_texts_then_finish_then_usage(
    shared_engine: EngineProcess,
) -> None:
    async with idle_after(shared_engine) as client:
        told = await client.told(client.chat(rid="r-1", max_tokens=12, ignore_eos=True))
        first, *_ = told.chunks
        assert first["choices"][0]["delta"] == {
            "reasoning_content": None,
            "role": "assistant",
            "content": "",
        }
        assert {chunk["id"] for chunk in told.chunks} == {"r-1"}
        assert {chunk["model"] for chunk in told.chunks} == {shared_engine.model}
        assert told.finish == "length"
        assert told.usage["completion_tokens"] == 12
        assert told.usage["total_tokens"] == told.usage["prompt_tokens"] + 12
        assert 1 <= len(told.texts) <= 12
        assert told.done


async def test_without_include_usage_there_is_no_usage(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        answer = await client.ask(client.chat(max_tokens=3, stream=True))
        assert '"usage"' not in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_whole_answer_has_the_same_bill(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        body = client.chat("The same bill twice", max_tokens=9, ignore_eos=True)
        told = await client.told(body)
        whole = orjson.loads((await client.ask(body)).body)
        assert whole["choices"][0]["finish_reason"] == "length"
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert whole["usage"][name] == told.usage[name]


async def test_the_model_name_is_echoed_not_checked(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        whole = orjson.loads((await client.ask(client.chat(model="nope", max_tokens=1))).body)
        assert whole["model"] == "nope"


async def test_many_choices_have_ids_of_their_own(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        told = await client.told(client.chat(rid="many", n=2, max_tokens=4, ignore_eos=True))
        speaking = [one for one in told.chunks if one["choices"]]
        by_index = {0: set[str](), 1: set[str]()}
        for chunk in speaking:
            choice = chunk["choices"][0]
            if choice["finish_reason"] is None:
                by_index[choice["index"]].add(chunk["id"])
        assert all(len(ids) == 1 for ids in by_index.values())
        assert by_index[0] != by_index[1]
        assert "many" not in by_index[0] | by_index[1]
        assert told.usage["completion_tokens"] == 8


async def test_zero_tokens_are_a_prompt_alone(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        whole = orjson.loads((await client.ask(client.chat(max_tokens=0))).body)
        assert whole["choices"][0]["message"]["content"] == ""
        assert whole["usage"]["completion_tokens"] == 0
        assert whole["choices"][0]["finish_reason"] == "length"


async def test_logprobs_come_with_their_tokens(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        body = client.chat(max_tokens=3, ignore_eos=True, logprobs=True, top_logprobs=2)
        whole = orjson.loads((await client.ask(body)).body)
        rows = whole["choices"][0]["logprobs"]["content"]
        assert len(rows) == 3
        assert all(len(row["top_logprobs"]) == 2 for row in rows)
        told = await client.told(body)
        with_rows = [
            chunk
            for chunk in told.chunks
            if chunk["choices"] and chunk["choices"][0]["logprobs"] is not None
        ]
        assert with_rows


async def test_plain_completions_stream_their_finish_in_the_last_text(
    shared_engine: EngineProcess,
) -> None:
    async with idle_after(shared_engine) as client:
        body = {
            "model": shared_engine.model,
            "prompt": "The capital of France is",
            "max_tokens": 3,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        answer = await client.post("/v1/completions", body)
        events = [
            orjson.loads(event.removeprefix("data: "))
            for event in answer.text.split("\n\n")
            if event.startswith("data: {")
        ]
        *texts, usage = events
        assert [one["choices"][0]["finish_reason"] for one in texts][-1] == "length"
        assert all(one["usage"] is None for one in texts)
        assert usage["usage"]["prompt_tokens"] == 5
        assert usage["usage"]["completion_tokens"] == 3
