"""Any JSON is either a valid request or a 400 with four keys: never another exception."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import orjson
from hypothesis import example, given, settings

from inferd.api.error_body import render
from inferd.api.parameters import ACCEPTED, GATEWAY, HONOURED, REFUSED
from inferd.api.parsed import ParsedRequest
from inferd.api.schema import parse_chat
from inferd.errors import RequestError
from inferd.inference import ModelLimits

LIMITS = ModelLimits(
    name="demo", context_tokens_max=4_096, output_tokens_max=512, choices_max=8, reasoning=True
)
# Words that lead deeper into the checks than any random text would.
WORDS = [
    "additionalProperties",
    "allowed_tools",
    "anyOf",
    "arguments",
    "array",
    "assistant",
    "auto",
    "call_1",
    "content",
    "description",
    "enum",
    "function",
    "id",
    "include_usage",
    "items",
    "json_object",
    "json_schema",
    "mode",
    "name",
    "object",
    "parameters",
    "properties",
    "refusal",
    "required",
    "role",
    "schema",
    "strict",
    "string",
    "system",
    "text",
    "tool",
    "tool_call_id",
    "tool_calls",
    "tools",
    "type",
    "user",
    "{}",
]
word = st.sampled_from(WORDS)
string = word | st.text(max_size=8)
scalar = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | string
)
json = st.recursive(
    scalar,
    lambda child: st.lists(child, max_size=4) | st.dictionaries(string, child, max_size=5),
    max_leaves=20,
)
ROLES = ("system", "developer", "user", "assistant", "tool")
call = st.fixed_dictionaries(
    {},
    optional={
        "id": string,
        "type": st.just("function") | json,
        "function": st.fixed_dictionaries({}, optional={"name": string, "arguments": json}) | json,
    },
)
message = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(ROLES),
        "content": json,
        "name": json,
        "tool_call_id": string,
        "tool_calls": st.lists(call, max_size=3) | json,
    },
)
function = st.fixed_dictionaries(
    {},
    optional={
        "name": string,
        "description": json,
        "parameters": st.dictionaries(word, json, max_size=4) | json,
        "strict": st.booleans() | json,
    },
)
tool = st.fixed_dictionaries({"type": st.just("function") | json, "function": function | json})
schema = st.fixed_dictionaries({"name": word, "schema": st.dictionaries(word, json, max_size=4)})
PARAMETERS = {
    **dict.fromkeys((*HONOURED, *GATEWAY, *ACCEPTED, *REFUSED), json),
    "messages": st.lists(message | json, max_size=4),
    "tools": st.lists(tool | json, max_size=3),
    "response_format": st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "json_schema"]), "json_schema": schema | json}
    )
    | json,
}
body = st.fixed_dictionaries({"model": st.just("demo")}, optional=PARAMETERS)
one_parameter = st.sampled_from(sorted(PARAMETERS)).flatmap(
    lambda name: st.fixed_dictionaries(
        {
            "model": st.just("demo"),
            "messages": st.just([{"role": "user", "content": "x"}]),
            name: PARAMETERS[name],
        }
    )
)


def parsed(raw: bytes) -> ParsedRequest | None:
    try:
        return parse_chat(raw, lambda _name: LIMITS)
    except RequestError as error:
        rendered = render(error, "req_1")
        assert 400 <= rendered.status < 500
        content = orjson.loads(rendered.body)
        assert set(content["error"]) == {"message", "type", "param", "code"}
        assert content["error"]["type"] == "invalid_request_error"
        return None


def check(chat: ParsedRequest) -> None:
    payload = orjson.loads(orjson.dumps(chat.body))
    assert payload["messages"]
    assert set(payload) <= {*HONOURED, "messages", "tools", "tool_choice"} | {
        "parallel_tool_calls",
        "reasoning_effort",
    }
    assert None not in payload.values()
    assert 1 <= chat.output_tokens_max <= LIMITS.output_tokens_max
    assert 1 <= chat.choices <= LIMITS.choices_max


@given(st.binary(max_size=200) | json.map(orjson.dumps))
def test_any_bytes(raw: bytes) -> None:
    parsed(raw)


@settings(max_examples=2 * settings().max_examples)
@given(body)
@example({"model": "demo", "messages": [{"role": "user", "content": "x"}], "stop": [{}]})
@example({"model": "demo", "messages": [{"role": {}, "content": "x"}]})
def test_any_values_of_known_parameters(value: dict[str, Any]) -> None:
    if chat := parsed(orjson.dumps(value)):
        check(chat)


@settings(max_examples=3 * settings().max_examples)
@given(one_parameter)
def test_any_value_of_one_parameter(value: dict[str, Any]) -> None:
    if chat := parsed(orjson.dumps(value)):
        check(chat)
