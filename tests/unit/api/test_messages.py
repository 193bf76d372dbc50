"""Messages: roles and contents, what is put right for the engine, and the order of tool calls."""

from __future__ import annotations

from typing import Any

import pytest

from inferd.api.messages import check_messages
from inferd.errors import RequestError

USER = {"role": "user", "content": "hi"}


def call(call_id: str = "call_1", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function, **more}


def calling(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [call(i) for i in ids]}


def answer(call_id: str = "call_1", content: Any = "sunny") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def refusal(*messages: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_messages(list(messages))
    return caught.value


def test_a_plain_conversation_is_left_as_it_is() -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "¿qué?", "name": "ana"},
        {"role": "assistant", "content": "nada"},
        {"role": "user", "content": ""},
    ]
    before = [dict(message) for message in messages]
    assert check_messages(messages) == 8 + 7 + 4
    assert messages == before


def test_developer_becomes_system() -> None:
    messages = [{"role": "developer", "content": "be brief"}, USER]
    assert check_messages(messages) == 10
    assert messages[0] == {"role": "system", "content": "be brief"}


def test_parts_keep_their_text_and_lose_what_the_engine_does_not_know() -> None:
    part = {"type": "text", "text": "a", "prompt_cache_breakpoint": {"x": 1}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [part, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]
    assert check_messages(messages) == 4
    assert messages[0]["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages[1]["content"] == [{"type": "text", "text": "no"}]


def test_an_answer_of_the_sdk_can_be_sent_back_as_it_came() -> None:
    came = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "parsed": None,
        "reasoning_content": "hmm",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "index": 0,
                "function": {"name": "f", "arguments": '{"a": 1}', "parsed_arguments": {"a": 1}},
            }
        ],
    }
    messages = [USER, came, answer()]
    assert check_messages(messages) == 2 + 3 + 1 + 8 + 5
    assert messages[1] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hmm",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        ],
    }


def test_a_refusal_that_is_sent_back_becomes_its_text() -> None:
    messages = [USER, {"role": "assistant", "content": None, "refusal": "I will not."}, USER]
    check_messages(messages)
    assert messages[1] == {"role": "assistant", "content": "I will not."}


@pytest.mark.parametrize("arguments", ["", "  ", "{}"])
def test_a_call_without_arguments_has_an_empty_object(arguments: str) -> None:
    messages = [USER, {"role": "assistant", "tool_calls": [call("c", arguments)]}, answer("c")]
    check_messages(messages)
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == "{}"  # type: ignore[index]


def test_an_empty_list_of_calls_is_none() -> None:
    messages = [USER, {"role": "assistant", "content": "x", "tool_calls": []}, USER]
    check_messages(messages)
    assert messages[1] == {"role": "assistant", "content": "x"}


def test_calls_are_answered_in_any_order_and_more_than_once() -> None:
    check_messages(
        [USER, calling("a", "b"), answer("b"), answer("a"), answer("a"), calling("c"), answer("c")]
    )


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("hello", "invalid_type"),
        ({}, "invalid_type"),
        ([], "empty_array"),
        ([USER] * 2_049, "array_above_max_length"),
    ],
)
def test_messages_are_a_bounded_array(value: Any, code: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_messages(value)
    assert (caught.value.code, caught.value.param) == (code, "messages")


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("hi", "invalid_type", "messages[1]"),
        (None, "invalid_type", "messages[1]"),
        ({"content": "x"}, "missing_required_parameter", "messages[1].role"),
        ({"role": 1, "content": "x"}, "invalid_type", "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "invalid_type", "messages[1].role"),
        ({"role": "User", "content": "x"}, "invalid_value", "messages[1].role"),
        ({"role": "root", "content": "x"}, "invalid_value", "messages[1].role"),
        ({"role": "function", "content": "x"}, "unsupported_value", "messages[1].role"),
        ({"role": "user"}, "missing_required_parameter", "messages[1].content"),
        ({"role": "user", "content": None}, "invalid_type", "messages[1].content"),
        ({"role": "user", "content": 7}, "invalid_type", "messages[1].content"),
        ({"role": "user", "content": {}}, "invalid_type", "messages[1].content"),
        ({"role": "user", "content": []}, "empty_array", "messages[1].content"),
        ({"role": "user", "content": ["x"]}, "invalid_type", "messages[1].content[0]"),
        (
            {"role": "user", "content": [{}]},
            "missing_required_parameter",
            "messages[1].content[0].type",
        ),
        (
            {"role": "user", "content": [{"type": "text"}]},
            "missing_required_parameter",
            "messages[1].content[0].text",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": 1}]},
            "invalid_type",
            "messages[1].content[0].text",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]},
            "unknown_parameter",
            "messages[1].content[0].x",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
            "unsupported_value",
            "messages[1].content[0].type",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
            "unsupported_value",
            "messages[1].content[0].type",
        ),
        (
            {"role": "user", "content": [{"type": "file", "file": {}}]},
            "unsupported_value",
            "messages[1].content[0].type",
        ),
        # Not in the public API, but the engine would fetch it.
        (
            {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "u"}}]},
            "invalid_value",
            "messages[1].content[0].type",
        ),
        (
            {"role": "system", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
            "invalid_value",
            "messages[1].content[0].type",
        ),
        (
            {"role": "user", "content": [{"type": "refusal", "refusal": "no"}]},
            "invalid_value",
            "messages[1].content[0].type",
        ),
        ({"role": "user", "content": "x", "name": 7}, "invalid_type", "messages[1].name"),
        ({"role": "user", "content": "x", "tools": []}, "unknown_parameter", "messages[1].tools"),
        ({"role": "system", "content": "x", "tools": []}, "unknown_parameter", "messages[1].tools"),
        (
            {"role": "user", "content": "x", "tool_calls": []},
            "unknown_parameter",
            "messages[1].tool_calls",
        ),
        ({"role": "assistant"}, "invalid_type", "messages[1].content"),
        ({"role": "assistant", "content": None}, "invalid_type", "messages[1].content"),
        (
            {"role": "assistant", "content": None, "tool_calls": []},
            "invalid_type",
            "messages[1].content",
        ),
        (
            {"role": "assistant", "content": "x", "function_call": {"name": "f"}},
            "unsupported_parameter",
            "messages[1].function_call",
        ),
        (
            {"role": "assistant", "content": "x", "audio": {"id": "a"}},
            "unsupported_parameter",
            "messages[1].audio",
        ),
        (
            {"role": "assistant", "content": "x", "reasoning_content": 1},
            "invalid_type",
            "messages[1].reasoning_content",
        ),
        (
            {"role": "assistant", "content": "x", "prefix": True},
            "unknown_parameter",
            "messages[1].prefix",
        ),
        ({"role": "assistant", "tool_calls": {}}, "invalid_type", "messages[1].tool_calls"),
        (
            {"role": "assistant", "tool_calls": [call(str(i)) for i in range(129)]},
            "array_above_max_length",
            "messages[1].tool_calls",
        ),
        ({"role": "assistant", "tool_calls": [1]}, "invalid_type", "messages[1].tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [{"type": "function"}]},
            "missing_required_parameter",
            "messages[1].tool_calls[0].id",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "a"}]},
            "missing_required_parameter",
            "messages[1].tool_calls[0].function",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]},
            "missing_required_parameter",
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [call(type="custom")]},
            "unsupported_value",
            "messages[1].tool_calls[0].type",
        ),
        (
            {"role": "assistant", "tool_calls": [call(type="other")]},
            "invalid_value",
            "messages[1].tool_calls[0].type",
        ),
        (
            {"role": "assistant", "tool_calls": [call(extra=1)]},
            "unknown_parameter",
            "messages[1].tool_calls[0].extra",
        ),
        (
            {"role": "assistant", "tool_calls": [call("")]},
            "empty_string",
            "messages[1].tool_calls[0].id",
        ),
        (
            {"role": "assistant", "tool_calls": [call("a"), call("a")]},
            "invalid_value",
            "messages[1].tool_calls[1].id",
        ),
        (
            {"role": "assistant", "tool_calls": [call("a", "not json")]},
            "invalid_value",
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [call("a", "[1]")]},
            "invalid_value",
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [call("a", '{"a":' * 33 + "1" + "}" * 33)]},
            "invalid_value",
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            {"role": "tool", "content": "x"},
            "missing_required_parameter",
            "messages[1].tool_call_id",
        ),
        (
            {"role": "tool", "content": "x", "tool_call_id": "a" * 257},
            "string_above_max_length",
            "messages[1].tool_call_id",
        ),
    ],
)
def test_a_wrong_message_is_refused_with_its_code_and_path(
    message: Any, code: str, param: str
) -> None:
    error = refusal(USER, message)
    assert (error.status, error.code, error.param) == (400, code, param)
    assert f"'{param}'" in error.message


@pytest.mark.parametrize("content", [None, 7, []])
def test_a_tools_answer_is_text(content: Any) -> None:
    error = refusal(USER, calling("a"), answer("a", content))
    assert error.param == "messages[2].content"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([USER, answer("a")], "messages.[1].role"),
        ([USER, calling("a"), answer("b")], "messages.[2].role"),
        ([USER, calling("a"), answer("a"), USER, calling("b"), answer("a")], "messages.[5].role"),
        (
            [USER, calling("a"), answer("a"), {"role": "assistant", "content": "x"}, answer("a")],
            "messages.[4].role",
        ),
        ([USER, calling("a")], "messages.[1].role"),
        ([USER, calling("a", "b"), answer("a"), USER], "messages.[1].role"),
        (
            [USER, calling("a"), {"role": "assistant", "content": "x"}, answer("a")],
            "messages.[1].role",
        ),
        ([USER, calling("a"), calling("b"), answer("b")], "messages.[1].role"),
    ],
)
def test_calls_and_answers_belong_together(messages: list[Any], param: str) -> None:
    error = refusal(*messages)
    assert (error.status, error.code, error.param) == (400, None, param)
    assert "tool" in error.message


def test_no_text_of_a_prompt_is_in_an_error() -> None:
    secret = "s3cret " * 40
    error = refusal({"role": "user", "content": secret}, {"role": secret, "content": secret})
    assert len(error.message) < 250
    error = refusal(
        USER, {"role": "assistant", "tool_calls": [call("a", secret)]}, {"role": "x", "content": 1}
    )
    assert "s3cret" not in error.message
