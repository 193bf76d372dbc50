"""Every parameter of a chat completion: honoured, accepted or refused, and with which words."""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson
import pytest

from inferd.api.schema import TOKEN_BYTES_MAX, ParsedChat, parse_chat
from inferd.errors import ModelNotAllowed, RequestError, UnknownModel
from inferd.inference import ModelLimits, Priority

LIMITS = ModelLimits(name="demo", context_tokens_max=4_096, output_tokens_max=512, choices_max=8)
REASONING = dataclasses.replace(LIMITS, reasoning=True)
MESSAGES = [{"role": "user", "content": "hello"}]
WEATHER = {"type": "function", "function": {"name": "weather"}}


def parse_with(limits: ModelLimits, fields: dict[str, Any]) -> ParsedChat:
    body = {"model": "demo", "messages": MESSAGES, **fields}
    return parse_chat(orjson.dumps(body), lambda _name: limits)


def parse(**fields: Any) -> ParsedChat:
    return parse_with(LIMITS, fields)


def refusal_with(limits: ModelLimits, fields: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_with(limits, fields)
    return caught.value


def refusal(**fields: Any) -> RequestError:
    return refusal_with(LIMITS, fields)


def test_a_bare_request_asks_the_engine_for_nothing_but_its_messages() -> None:
    chat = parse()
    assert chat.body == {"messages": MESSAGES}
    assert chat.model == "demo"
    assert chat.limits is LIMITS
    assert not chat.stream
    assert not chat.include_usage
    assert chat.choices == 1
    assert chat.output_tokens_max == 512
    assert not chat.output_tokens_given
    assert chat.priority is Priority.INTERACTIVE
    assert chat.prompt_bytes == 5
    assert chat.parallel_tool_calls
    assert chat.service_tier is None
    assert chat.metadata == {}
    assert chat.user_hash is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", 2),
        ("temperature", 0.7),
        ("top_p", 1),
        ("frequency_penalty", -2),
        ("presence_penalty", 2.0),
        ("logit_bias", {"50256": -100, "7": 100.0}),
        ("logprobs", False),
        ("logprobs", True),
        ("stop", "\n"),
        ("stop", ["a", "b", "c", "d"]),
        ("seed", -(2**63)),
        ("seed", 2**63 - 1),
        ("response_format", {"type": "json_object"}),
        ("top_k", -1),
        ("top_k", 40),
        ("min_p", 0.05),
        ("repetition_penalty", 1.1),
        ("regex", "(yes|no)"),
        ("ebnf", 'root ::= "yes"'),
        ("stop_token_ids", [0, 2]),
        ("ignore_eos", True),
        ("min_tokens", 512),
        ("chat_template_kwargs", {"enable_thinking": False, "style": "short", "level": None}),
        ("separate_reasoning", False),
        ("continue_final_message", False),
    ],
)
def test_what_is_honoured_reaches_the_engine_under_its_name(name: str, value: Any) -> None:
    assert parse(**{name: value}).body[name] == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("verbosity", "medium"),
        ("prompt_cache_key", "session-1"),
        ("prompt_cache_options", {"mode": "explicit", "ttl": "30m"}),
        ("prompt_cache_retention", "24h"),
        ("store", False),
        ("modalities", ["text"]),
        ("prediction", {"type": "content", "content": "abc"}),
        ("metadata", {"run": "7"}),
        ("user", "someone"),
        ("safety_identifier", "someone"),
        ("service_tier", "auto"),
        ("priority", "interactive"),
        ("n", 3),
        ("max_tokens", 5),
        ("stream", True),
        ("parallel_tool_calls", False),
        ("reasoning_effort", "none"),
        ("response_format", {"type": "text"}),
        ("tools", []),
        ("tool_choice", "auto"),
        ("tool_choice", "none"),
    ],
)
def test_what_is_not_the_engines_business_does_not_reach_it(name: str, value: Any) -> None:
    assert parse(**{name: value}).body == {"messages": MESSAGES}


@pytest.mark.parametrize(
    "name",
    ["audio", "function_call", "functions", "moderation", "web_search_options"],
)
def test_what_is_known_but_not_served_is_refused_by_name_with_a_hint(name: str) -> None:
    error = refusal(**{name: {}})
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", name)
    assert f"'{name}'" in error.message
    assert parse(**{name: None}).body == {"messages": MESSAGES}


@pytest.mark.parametrize(
    "name",
    # What an engine would obey, or tell; and what nobody knows.
    [
        "rid",
        "session_id",
        "session_params",
        "cache_salt",
        "extra_key",
        "lora_path",
        "custom_logit_processor",
        "custom_params",
        "input_ids",
        "data_parallel_rank",
        "routed_dp_rank",
        "bootstrap_host",
        "bootstrap_room",
        "return_hidden_states",
        "return_token_ids",
        "no_such_thing",
        "Temperature",
        "",
    ],
)
@pytest.mark.parametrize("value", [1, None])
def test_an_unknown_parameter_is_refused_by_name(name: str, value: Any) -> None:
    error = refusal(**{name: value})
    assert (error.status, error.code, error.param) == (400, "unknown_parameter", name)
    assert error.message == f"Unknown parameter: '{name}'."


def test_a_long_unknown_name_is_shown_clipped() -> None:
    assert len(refusal(**{"x" * 10_000: 1}).message) < 120


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"temperature": 2.1}, "decimal_above_max_value", "temperature"),
        ({"temperature": -0.1}, "decimal_below_min_value", "temperature"),
        ({"temperature": "1"}, "invalid_type", "temperature"),
        ({"temperature": True}, "invalid_type", "temperature"),
        ({"top_p": 1.01}, "decimal_above_max_value", "top_p"),
        ({"frequency_penalty": 2.5}, "decimal_above_max_value", "frequency_penalty"),
        ({"presence_penalty": -3}, "decimal_below_min_value", "presence_penalty"),
        ({"logit_bias": []}, "invalid_type", "logit_bias"),
        ({"logit_bias": {"foo": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"٣": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"9" * 5_000: 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"7": 101}}, "decimal_above_max_value", "logit_bias.7"),
        ({"logit_bias": {"7": None}}, "invalid_type", "logit_bias.7"),
        (
            {"logit_bias": {str(i): 1 for i in range(1_025)}},
            "object_above_max_properties",
            "logit_bias",
        ),
        ({"logprobs": 1}, "invalid_type", "logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "integer_above_max_value", "top_logprobs"),
        ({"top_logprobs": 2}, "invalid_parameter_combination", "top_logprobs"),
        ({"top_logprobs": 0, "logprobs": False}, "invalid_parameter_combination", "top_logprobs"),
        ({"stop": []}, "empty_array", "stop"),
        ({"stop": ["a"] * 5}, "array_above_max_length", "stop"),
        ({"stop": ""}, "empty_string", "stop"),
        ({"stop": ["a", ""]}, "empty_string", "stop[1]"),
        ({"stop": ["a", 1]}, "invalid_type", "stop[1]"),
        ({"stop": 1}, "invalid_type", "stop"),
        ({"stop": "x" * 1_025}, "string_above_max_length", "stop"),
        ({"seed": 2**63}, "integer_above_max_value", "seed"),
        ({"seed": 1.5}, "invalid_type", "seed"),
        ({"n": 9}, "integer_above_max_value", "n"),
        ({"n": 0}, "integer_below_min_value", "n"),
        ({"n": True}, "invalid_type", "n"),
        ({"n": "1"}, "invalid_type", "n"),
        ({"n": 1.0}, "invalid_type", "n"),
        ({"max_tokens": 0}, "integer_below_min_value", "max_tokens"),
        ({"max_tokens": 513}, "integer_above_max_value", "max_tokens"),
        ({"max_completion_tokens": 513}, "integer_above_max_value", "max_completion_tokens"),
        ({"max_completion_tokens": []}, "invalid_type", "max_completion_tokens"),
        (
            {"max_completion_tokens": 5, "max_tokens": 5},
            "invalid_parameter_combination",
            "max_tokens",
        ),
        ({"stream": "true"}, "invalid_type", "stream"),
        ({"stream_options": {}}, "invalid_parameter_combination", "stream_options"),
        (
            {"stream": False, "stream_options": {"include_usage": True}},
            "invalid_parameter_combination",
            "stream_options",
        ),
        ({"stream": True, "stream_options": []}, "invalid_type", "stream_options"),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "invalid_type",
            "stream_options.include_usage",
        ),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "unknown_parameter",
            "stream_options.continuous_usage_stats",
        ),
        ({"verbosity": "low"}, "unsupported_value", "verbosity"),
        ({"verbosity": "loud"}, "invalid_value", "verbosity"),
        ({"user": 7}, "invalid_type", "user"),
        ({"safety_identifier": "x" * 129}, "string_above_max_length", "safety_identifier"),
        ({"prompt_cache_key": 7}, "invalid_type", "prompt_cache_key"),
        ({"prompt_cache_options": {"mode": "x"}}, "invalid_value", "prompt_cache_options.mode"),
        ({"prompt_cache_options": {"x": 1}}, "unknown_parameter", "prompt_cache_options.x"),
        ({"prompt_cache_retention": "1h"}, "invalid_value", "prompt_cache_retention"),
        ({"priority": "urgent"}, "invalid_value", "priority"),
        ({"priority": 5}, "invalid_type", "priority"),
        ({"service_tier": "gold"}, "invalid_value", "service_tier"),
        ({"store": True}, "unsupported_value", "store"),
        ({"metadata": []}, "invalid_type", "metadata"),
        ({"metadata": {"tags": ["a"]}}, "invalid_type", "metadata.tags"),
        ({"metadata": {"tags": None}}, "invalid_type", "metadata.tags"),
        ({"metadata": {"a": "x" * 513}}, "string_above_max_length", "metadata.a"),
        ({"metadata": {"k" * 65: "x"}}, "string_above_max_length", "metadata"),
        (
            {"metadata": {str(i): "x" for i in range(17)}},
            "object_above_max_properties",
            "metadata",
        ),
        ({"modalities": ["text", "audio"]}, "unsupported_value", "modalities[1]"),
        ({"modalities": []}, "empty_array", "modalities"),
        ({"modalities": ["video"]}, "invalid_value", "modalities[0]"),
        ({"prediction": {"type": "content"}}, "missing_required_parameter", "prediction.content"),
        ({"reasoning_effort": "high"}, "unsupported_value", "reasoning_effort"),
        ({"reasoning_effort": "extreme"}, "invalid_value", "reasoning_effort"),
        ({"top_k": 0}, "invalid_value", "top_k"),
        ({"top_k": -2}, "integer_below_min_value", "top_k"),
        ({"min_p": 1.5}, "decimal_above_max_value", "min_p"),
        ({"repetition_penalty": 0}, "decimal_below_min_value", "repetition_penalty"),
        ({"regex": ""}, "empty_string", "regex"),
        ({"ebnf": "x" * 16_385}, "string_above_max_length", "ebnf"),
        ({"regex": "a", "ebnf": "b"}, "invalid_parameter_combination", "ebnf"),
        (
            {"regex": "a", "response_format": {"type": "json_object"}},
            "invalid_parameter_combination",
            "regex",
        ),
        ({"stop_token_ids": [1] * 65}, "array_above_max_length", "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "integer_below_min_value", "stop_token_ids[0]"),
        ({"ignore_eos": 1}, "invalid_type", "ignore_eos"),
        ({"min_tokens": -1}, "integer_below_min_value", "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "invalid_parameter_combination", "min_tokens"),
        (
            {"chat_template_kwargs": {"chat_template": "{{ x }}"}},
            "unsupported_parameter",
            "chat_template_kwargs.chat_template",
        ),
        (
            {"chat_template_kwargs": {"reasoning_effort": "high"}},
            "unsupported_parameter",
            "chat_template_kwargs.reasoning_effort",
        ),
        (
            {"chat_template_kwargs": {"a b": 1}},
            "unsupported_parameter",
            "chat_template_kwargs.a b",
        ),
        ({"chat_template_kwargs": {"a": [1]}}, "invalid_type", "chat_template_kwargs.a"),
        (
            {"chat_template_kwargs": {f"k{i}": 1 for i in range(17)}},
            "object_above_max_properties",
            "chat_template_kwargs",
        ),
        (
            {"continue_final_message": True},
            "invalid_parameter_combination",
            "continue_final_message",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_code_and_path(
    fields: dict[str, Any], code: str, param: str
) -> None:
    error = refusal(**fields)
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert (error.code, error.param) == (code, param)
    # An SDK shows the message alone, so the message names the parameter.
    assert f"'{param}" in error.message


def test_the_words_are_those_of_the_public_api() -> None:
    assert refusal(n=130).message == (
        "Invalid 'n': integer above maximum value. Expected a value <= 8, but got 130 instead."
    )
    assert refusal(metadata={"tags": ["a"]}).message == (
        "Invalid type for 'metadata.tags': expected a string, but got an array instead."
    )
    assert refusal(verbosity="loud").message == (
        "Invalid 'verbosity': got 'loud'. Supported values are: 'low', 'medium' and 'high'."
    )
    assert refusal(stop=["a"] * 5).message == (
        "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array "
        "with length 5 instead."
    )


@pytest.mark.parametrize("digits", ["1" + "0" * 30, "-1" + "0" * 30])
def test_a_number_of_more_than_64_bits_is_out_of_range_not_a_crash(digits: str) -> None:
    raw = b'{"model":"demo","messages":[{"role":"user","content":"x"}],"n":%s}' % digits.encode()
    with pytest.raises(RequestError) as caught:
        parse_chat(raw, lambda _name: LIMITS)
    expected = "integer_below_min_value" if digits[0] == "-" else "integer_above_max_value"
    assert caught.value.code == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"model":',
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"temperature":NaN}',
        b'{"temperature":Infinity}',
        b'{"temperature":1e999}',
        b'{"model":"\\ud800"}',
        b"{} {}",
        b"[" * 100_000,
        b'{"a":' * 2_000,
    ],
)
def test_what_is_not_json_is_refused_without_showing_it(raw: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat(raw, lambda _name: LIMITS)
    error = caught.value
    assert (error.status, error.code, error.param) == (400, None, None)
    assert error.message.startswith("We could not parse the JSON body of your request: ")
    assert len(error.message) < 200


@pytest.mark.parametrize("raw", [b"[]", b'"x"', b"1", b"null", b"true"])
def test_a_body_that_is_no_object_has_the_wrong_type(raw: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat(raw, lambda _name: LIMITS)
    assert (caught.value.code, caught.value.param) == ("invalid_type", None)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"messages": MESSAGES}, "missing_required_parameter", "model"),
        ({"model": None, "messages": MESSAGES}, "invalid_type", "model"),
        ({"model": 7, "messages": MESSAGES}, "invalid_type", "model"),
        ({"model": "", "messages": MESSAGES}, "empty_string", "model"),
        ({"model": "m" * 257, "messages": MESSAGES}, "string_above_max_length", "model"),
        ({"model": "demo"}, "missing_required_parameter", "messages"),
        ({"model": "demo", "messages": None}, "missing_required_parameter", "messages"),
    ],
)
def test_model_and_messages_are_required(body: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat(orjson.dumps(body), lambda _name: LIMITS)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_the_model_is_looked_up_before_anything_else_is_judged() -> None:
    def nobody(name: str) -> ModelLimits:
        raise UnknownModel(f"The model '{name}' does not exist.", param="model")

    def forbidden(name: str) -> ModelLimits:
        raise ModelNotAllowed(f"Your key may not use '{name}'.")

    body = orjson.dumps({"messages": 1, "model": "nope", "n": "x"})
    with pytest.raises(UnknownModel):
        parse_chat(body, nobody)
    with pytest.raises(ModelNotAllowed):
        parse_chat(body, forbidden)


@pytest.mark.parametrize(
    "name",
    [
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "temperature",
        "top_p",
        "frequency_penalty",
        "presence_penalty",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "stop",
        "seed",
        "response_format",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "reasoning_effort",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "service_tier",
        "store",
        "modalities",
        "top_k",
        "priority",
    ],
)
def test_null_is_the_same_as_absent(name: str) -> None:
    assert parse(**{name: None}) == parse()


def test_a_repeated_key_reaches_the_engine_as_the_one_that_was_checked() -> None:
    raw = b'{"model":"demo","messages":[{"role":"user","content":"hello"}],"n":99,"n":2}'
    chat = parse_chat(raw, lambda _name: LIMITS)
    assert chat.choices == 2
    assert chat.body == {"messages": MESSAGES}


def test_output_tokens_are_the_clients_or_the_models() -> None:
    assert parse(max_tokens=7).output_tokens_max == 7
    assert parse(max_completion_tokens=8).output_tokens_max == 8
    assert parse(max_completion_tokens=8, max_tokens=None).output_tokens_max == 8
    assert parse(max_tokens=7).output_tokens_given


def test_a_top_p_of_zero_becomes_what_the_engine_takes() -> None:
    assert 0 < parse(top_p=0).body["top_p"] < 1e-5


def test_usage_in_a_stream_is_asked_for_by_name() -> None:
    assert not parse(stream=True).include_usage
    assert not parse(stream=True, stream_options={"include_usage": False}).include_usage
    chat = parse(stream=True, stream_options={"include_usage": True, "include_obfuscation": False})
    assert chat.stream
    assert chat.include_usage


@pytest.mark.parametrize(
    ("fields", "priority_max", "priority", "tier"),
    [
        ({}, Priority.INTERACTIVE, Priority.INTERACTIVE, None),
        ({}, Priority.BATCH, Priority.BATCH, None),
        ({"priority": "batch"}, Priority.INTERACTIVE, Priority.BATCH, None),
        ({"priority": "interactive"}, Priority.BATCH, Priority.BATCH, None),
        ({"service_tier": "auto"}, Priority.INTERACTIVE, Priority.INTERACTIVE, "default"),
        ({"service_tier": "priority"}, Priority.INTERACTIVE, Priority.INTERACTIVE, "default"),
        ({"service_tier": "flex"}, Priority.INTERACTIVE, Priority.BATCH, "flex"),
        (
            {"service_tier": "flex", "priority": "interactive"},
            Priority.INTERACTIVE,
            Priority.BATCH,
            "flex",
        ),
    ],
)
def test_priority_is_the_lower_of_what_is_asked_and_what_the_team_has(
    fields: dict[str, Any], priority_max: Priority, priority: Priority, tier: str | None
) -> None:
    raw = orjson.dumps({"model": "demo", "messages": MESSAGES, **fields})
    chat = parse_chat(raw, lambda _name: LIMITS, priority_max=priority_max)
    assert (chat.priority, chat.service_tier) == (priority, tier)


def test_reasoning_effort_is_for_models_that_reason() -> None:
    for effort in ("none", "minimal", "max"):
        chat = parse_with(REASONING, {"reasoning_effort": effort})
        assert chat.body["reasoning_effort"] == effort


def test_people_are_logged_as_a_hash_only() -> None:
    by_user, by_safety = parse(user="alice"), parse(user="alice", safety_identifier="id-7")
    assert by_user.user_hash is not None
    assert "alice" not in by_user.user_hash
    assert by_user.user_hash != by_safety.user_hash
    assert by_user.user_hash == parse(user="alice").user_hash


def test_metadata_is_kept() -> None:
    assert parse(metadata={"run": "7", "empty": ""}).metadata == {"run": "7", "empty": ""}


def test_prompt_bytes_count_utf8_of_all_text() -> None:
    chat = parse(
        messages=[
            {"role": "system", "content": "hé"},
            {"role": "user", "content": [{"type": "text", "text": "日本"}]},
        ],
        tools=[WEATHER],
    )
    assert chat.prompt_bytes == 3 + 6 + len("weather")


def test_a_prompt_that_cannot_fit_is_refused_before_the_engine_counts_it() -> None:
    limits = dataclasses.replace(LIMITS, context_tokens_max=10)
    fits = "x" * (10 * TOKEN_BYTES_MAX)
    chat = parse_with(limits, {"messages": [{"role": "user", "content": fits}]})
    assert chat.prompt_bytes == len(fits)
    error = refusal_with(limits, {"messages": [{"role": "user", "content": fits + "x"}]})
    assert (error.code, error.param) == ("context_length_exceeded", "messages")
    assert "10 tokens" in error.message


def test_a_final_assistant_message_can_be_continued() -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "The capital is"}]
    chat = parse(messages=messages, continue_final_message=True)
    assert chat.body["continue_final_message"] is True


@pytest.mark.parametrize(
    "constraint",
    [{"response_format": {"type": "json_object"}}, {"regex": "a"}, {"ebnf": "b"}],
)
def test_a_bound_answer_and_tools_exclude_each_other(constraint: dict[str, Any]) -> None:
    error = refusal(tools=[WEATHER], **constraint)
    assert error.code == "invalid_parameter_combination"
    assert error.param == next(iter(constraint))
    assert parse(tools=[WEATHER], tool_choice="none", **constraint).body["tool_choice"] == "none"
