"""The tables of parameters: what is honoured, accepted, refused, and with which words."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from inferd.api.parsed import ParsedRequest
from inferd.api.schema import parse_chat
from inferd.errors import RequestError
from inferd.inference import ModelLimits

LIMITS = ModelLimits(name="demo", context_tokens_max=4_096, output_tokens_max=512, choices_max=8)
MESSAGES = [{"role": "user", "content": "hello"}]


def parse(**fields: Any) -> ParsedRequest:
    body = {"model": "demo", "messages": MESSAGES, **fields}
    return parse_chat(orjson.dumps(body), lambda _name: LIMITS)


def refusal(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(**fields)
    return caught.value


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
