"""Answers that a schema holds, on both engines: JSON and tool calls."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.contract.client import idle_after
from tests.fakes.engines import EngineProcess

pytestmark = pytest.mark.real_time

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "rating": {"type": "integer", "minimum": 1, "maximum": 5},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["name", "rating", "unit"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "rate", "strict": True, "parameters": SCHEMA}}


def schema_format(schema: Any) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": "x", "strict": True, "schema": schema},
    }


def assert_conforms(text: str) -> None:
    value = orjson.loads(text)
    assert set(value) == {"name", "rating", "unit"}
    assert isinstance(value["name"], str)
    assert len(value["name"]) <= 6
    assert value["rating"] in range(1, 6)
    assert value["unit"] in {"celsius", "fahrenheit"}


async def test_a_json_schema_holds_whole_and_streamed(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        body = client.chat("Rate it", max_tokens=80, response_format=schema_format(SCHEMA))
        whole = orjson.loads((await client.ask(body)).body)
        assert whole["choices"][0]["finish_reason"] == "stop"
        assert_conforms(whole["choices"][0]["message"]["content"])
        told = await client.told(body)
        assert_conforms(told.text)
        assert told.finish == "stop"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "rate"}}])
async def test_a_strict_tool_call_holds_whole_and_streamed(
    shared_engine: EngineProcess, choice: object
) -> None:
    async with idle_after(shared_engine) as client:
        body = client.chat(
            "Rate it",
            max_tokens=80,
            tools=[TOOL],
            tool_choice=choice,
            parallel_tool_calls=False,
        )
        whole = orjson.loads((await client.ask(body)).body)
        (call,) = whole["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "rate"
        assert_conforms(call["function"]["arguments"])
        told = await client.told(body)
        calls = [
            delta["tool_calls"][0]
            for chunk in told.chunks
            if chunk["choices"] and (delta := chunk["choices"][0]["delta"]).get("tool_calls")
        ]
        assert calls[0]["function"] == {"name": "rate", "arguments": ""}
        assert calls[0]["id"].startswith("call_")
        assert all(call["id"] is None for call in calls[1:])
        assert_conforms("".join(call["function"]["arguments"] for call in calls))


async def test_a_schema_that_cannot_be_a_grammar(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        body = client.chat(max_tokens=5, response_format=schema_format({"type": "nonsense"}))
        refused = await client.ask(body)
        assert refused.status == 400
        error = orjson.loads(refused.body)
        assert error["type"] == "BadRequestError"
        assert error["message"].startswith("Failed to compile json grammar: ")
        told = await client.told(body)
        assert told.error is not None
        assert (told.error["type"], told.error["code"]) == ("BAD_REQUEST", 400)
        # The engine has run one token of a one-token prompt, and says so.
        assert told.usage["prompt_tokens"] == told.usage["completion_tokens"] == 1
