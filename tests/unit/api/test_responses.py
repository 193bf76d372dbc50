"""A response's body: turned into a chat, checked as one, its errors told in its own words."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from inferd.api.parsed import ParsedRequest
from inferd.api.responses import parse_response
from inferd.api.tokenize import parse_input_tokens, parse_tokenize
from inferd.errors import RequestError
from inferd.inference import ModelKind, ModelLimits, Priority

LIMITS = ModelLimits(
    name="demo", context_tokens_max=4_096, output_tokens_max=512, choices_max=8, reasoning=True
)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
TOOL = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}


def parse(**fields: Any) -> ParsedRequest:
    body = {"model": "demo", "input": "hello", **fields}
    return parse_response(orjson.dumps(body), lambda _name: LIMITS, Priority.INTERACTIVE)


def refusal(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(**fields)
    return caught.value


def test_a_text_is_a_users_message_after_the_instructions() -> None:
    assert parse(instructions="Be brief").body["messages"] == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "hello"},
    ]


def test_items_become_messages_and_calls_join_their_message() -> None:
    items = [
        {"role": "developer", "content": "Be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Paris?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        CALL,
        {**CALL, "call_id": "c2", "id": "fc_2", "status": "completed"},
        OUTPUT,
        {**OUTPUT, "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
    ]
    system, user, assistant, first, second = parse(input=items).body["messages"]
    assert (system["role"], user["content"]) == ("system", [{"type": "text", "text": "Paris?"}])
    assert [call["id"] for call in assistant["tool_calls"]] == ["c1", "c2"]
    assert (first["role"], first["content"]) == ("tool", "sunny")
    assert second["content"] == [{"type": "text", "text": "rain"}]


def test_parameters_are_those_of_a_chat() -> None:
    parsed = parse(
        tools=[TOOL],
        tool_choice={"type": "function", "name": "weather"},
        max_output_tokens=9,
        reasoning={"effort": "low"},
        include=["message.output_text.logprobs"],
        parallel_tool_calls=False,
        temperature=0,
    )
    body = parsed.body
    assert body["tools"][0]["function"]["name"] == "weather"
    assert body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert (body["reasoning_effort"], body["logprobs"], body["temperature"]) == ("low", True, 0)
    assert (parsed.output_tokens_max, parsed.parallel_tool_calls) == (9, False)
    allowed = parse(
        tools=[TOOL],
        tool_choice={
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "weather"}],
        },
    )
    assert allowed.body["tool_choice"] == "required"


def test_a_format_is_flat_and_enforced() -> None:
    shape = {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}
    assert parse(text={"format": shape}).body["response_format"]["json_schema"]["schema"] == CITY
    assert "response_format" not in parse(text={"format": {"type": "text"}}).body
    assert parse(text={"verbosity": "medium"}).echo["text"] == {"verbosity": "medium"}


def test_the_answer_repeats_what_was_asked_and_stores_nothing() -> None:
    echo = parse(store=True, tools=[TOOL], instructions="x", temperature=0.5).echo
    assert (echo["store"], echo["tools"], echo["instructions"]) == (False, [TOOL], "x")
    assert (echo["temperature"], echo["top_p"], echo["tool_choice"]) == (0.5, 1.0, "auto")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "empty_array"),
        ({"input": 1}, "input", "invalid_type"),
        ({"input": [1]}, "input[0]", "invalid_type"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "unsupported_value"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "unsupported_value",
        ),
        ({"input": [{"role": "user", "content": "x"}, OUTPUT]}, "input[1].role", None),
        ({"input": [CALL]}, "input[0].role", None),
        (
            {"input": [{**CALL, "arguments": "["}, OUTPUT]},
            "input[0].tool_calls[0].function.arguments",
            "invalid_value",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_value"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "invalid_value"),
        (
            {"tools": [{**TOOL, "parameters": {**CITY, "not": {}}}]},
            "tools[0].parameters",
            "invalid_function_parameters",
        ),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
        (
            {"text": {"format": {"type": "json_schema", "schema": CITY}}},
            "text.format.name",
            "missing_required_parameter",
        ),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "integer_below_min_value"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort", "invalid_value"),
        ({"include": ["file_search_call.results"]}, "include[0]", "invalid_value"),
        ({"background": True}, "background", "unsupported_value"),
        ({"truncation": "auto"}, "truncation", "invalid_value"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"n": 2}, "n", "unknown_parameter"),
    ],
)
def test_errors_name_what_the_client_sent(
    fields: dict[str, Any], param: str, code: str | None
) -> None:
    error = refusal(**fields)
    assert (error.param, error.code) == (param, code)
    assert "messages[" not in error.message
    assert "response_format" not in error.message


def test_the_count_needs_the_prompt_alone() -> None:
    raw = orjson.dumps({"model": "demo", "input": "hi", "tools": [TOOL], "temperature": 1})
    parsed = parse_input_tokens(raw, lambda _name: LIMITS, Priority.INTERACTIVE)
    assert set(parsed.body) == {"messages", "tools", "tool_choice"}
    assert (parsed.prompt_bytes, parsed.output_tokens_max, parsed.stream) == (0, 0, False)


def tokenize(kind: ModelKind = ModelKind.CHAT, **fields: Any) -> ParsedRequest:
    limits = ModelLimits(
        name="demo", context_tokens_max=4_096, output_tokens_max=1, choices_max=1, kind=kind
    )
    raw = orjson.dumps({"model": "demo", **fields})
    return parse_tokenize(raw, lambda _name: limits, Priority.INTERACTIVE)


def test_texts_or_messages_are_made_tokens() -> None:
    assert tokenize(prompt=["a", "b"]).body == {"prompt": ["a", "b"]}
    assert tokenize(ModelKind.EMBEDDING, prompt="a", add_special_tokens=False).body == {
        "prompt": "a",
        "add_special_tokens": False,
    }
    messages = [{"role": "user", "content": "hi"}]
    assert tokenize(messages=messages).body == {"messages": messages}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "hi"}]}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": "a", "tools": []}, "tools"),
        ({"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"prompt": "a", "temperature": 1}, "temperature"),
    ],
)
def test_a_wrong_request_for_tokens_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        tokenize(**fields)
    assert caught.value.param == param
