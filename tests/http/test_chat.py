"""The public OpenAI SDK against inferd: what its users do first, and what its helpers rely on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import MODEL, Gateway, gateway

pytestmark = pytest.mark.real_time

HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
    for name in ("get_weather", "get_forecast")
]
NAMED: Any = {"type": "function", "function": {"name": "get_forecast"}}
PLACE: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "place",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
            "required": ["name", "people"],
            "additionalProperties": False,
        },
    },
}


async def test_streamed_and_not_are_the_same_answer_and_one_bill_each(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd, inferd.openai() as client:
        whole = await client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=8, temperature=0
        )
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=8,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        rows = await inferd.rows()
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert whole._request_id is not None
    assert [row.response_id for row in rows] == [whole.id, chunks[0].id]
    for row, usage in zip(rows, (whole.usage, chunks[-1].usage), strict=True):
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens) == (
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens_details.cached_tokens,
        )
    assert rows[1].cached_tokens > 0


async def test_the_synchronous_client_works_as_well(tmp_path: Path, fast: EngineProcess) -> None:
    def use(inferd: Gateway) -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{inferd.base_url}/v1", api_key=inferd.key) as client:
            whole = client.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=6, temperature=0
            )
            stream = client.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=6, temperature=0, stream=True
            )
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            return whole.choices[0].message.content or "", text

    async with gateway(tmp_path, fast) as inferd:
        whole, streamed = await asyncio.to_thread(use, inferd)
    assert whole == streamed != ""


async def test_the_sdks_own_assembly_puts_two_choices_together(
    tmp_path: Path, fast: EngineProcess
) -> None:
    """It joins repeated strings and fails on a choice that opens out of order."""
    async with gateway(tmp_path, fast) as inferd, inferd.openai() as client:
        async with client.chat.completions.stream(
            model=MODEL,
            messages=[{"role": "user", "content": "Say something. [tokens 11]"}],
            n=2,
            stream_options={"include_usage": True},
        ) as stream:
            kinds = {event.type async for event in stream}
            final = await stream.get_final_completion()
        row = await inferd.row()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert [choice.index for choice in final.choices] == [0, 1]
    assert [choice.message.role for choice in final.choices] == ["assistant", "assistant"]
    first, second = (choice.message.content for choice in final.choices)
    assert first
    assert second
    assert first != second
    assert final.usage is not None
    assert final.usage.completion_tokens == 24 == row.completion_tokens
    assert final.usage.prompt_tokens == row.prompt_tokens


async def test_a_named_tool_is_called_once_streamed_and_not(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd, inferd.openai() as client:
        whole = await client.chat.completions.create(
            model=MODEL, messages=HELLO, tools=WEATHER, tool_choice=NAMED
        )
        async with client.chat.completions.stream(
            model=MODEL, messages=HELLO, tools=WEATHER, tool_choice=NAMED
        ) as stream:
            streamed = await stream.get_final_completion()
    for answer in (whole, streamed):
        message = answer.choices[0].message
        assert message.tool_calls is not None
        (call,) = message.tool_calls
        assert call.type == "function"
        assert call.function.name == "get_forecast"
        assert set(json.loads(call.function.arguments)) <= {"city", "days"}
        assert call.id.startswith("call_")
        assert len(call.id) == len("call_") + 24
        assert not message.content
        assert answer.choices[0].finish_reason == "stop", "the model chose nothing"


async def test_an_answer_to_a_json_schema_parses(tmp_path: Path, fast: EngineProcess) -> None:
    async with gateway(tmp_path, fast) as inferd, inferd.openai() as client:
        whole = await client.chat.completions.create(
            model=MODEL, messages=HELLO, response_format=PLACE
        )
        stream = await client.chat.completions.create(
            model=MODEL, messages=HELLO, response_format=PLACE, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    for content in (whole.choices[0].message.content, text):
        assert content is not None
        place = json.loads(content)
        assert isinstance(place["name"], str)
        assert isinstance(place["people"], int)


async def test_the_models_of_a_key_are_listed_and_told_one_by_one(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd, inferd.openai() as client:
        models = [model async for model in client.models.list()]
        named = {
            name: await client.models.retrieve(name) for name in ("chat", "gpt-test", "chat@1")
        }
        with pytest.raises(openai.NotFoundError, match="nothing-like-it") as caught:
            await client.models.retrieve("org/nothing-like-it")
        with pytest.raises(openai.PermissionDeniedError, match="operator") as kept:
            await client.models.delete("gpt-test")
        with pytest.raises(openai.NotFoundError, match="nothing-like-it"):
            await client.models.delete("nothing-like-it")
    assert kept.value.code == "insufficient_permissions"
    (model,) = models
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "inferd")
    extra = model.model_extra
    assert extra is not None
    assert {key: extra[key] for key in ("version", "context_tokens_max", "state")} == {
        "version": "1",
        "context_tokens_max": 4_096,
        "state": "ready",
    }
    assert all(one.created == model.created for one in named.values())
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_the_sdk_retries_what_may_succeed_and_only_that(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd, inferd.openai(max_retries=2) as client:
        await inferd.engine.fault("error", status=500, times=2)
        retried = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3)
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model=MODEL, messages=HELLO, temperature=3)
        rows = await inferd.rows()
    assert retried.choices[0].message.content
    assert [row.outcome for row in rows] == ["failed", "failed", "completed"]
