"""From body to `ParsedRequest`: the body itself, the model, and the rules between parameters."""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson
import pytest

from inferd.api.parsed import TOKEN_BYTES_MAX, ParsedRequest
from inferd.api.schema import parse_chat
from inferd.errors import ModelNotAllowed, RequestError, UnknownModel
from inferd.inference import ModelLimits, Priority

LIMITS = ModelLimits(name="demo", context_tokens_max=4_096, output_tokens_max=512, choices_max=8)
REASONING = dataclasses.replace(LIMITS, reasoning=True)
MESSAGES = [{"role": "user", "content": "hello"}]
WEATHER = {"type": "function", "function": {"name": "weather"}}


def parse_with(limits: ModelLimits, fields: dict[str, Any]) -> ParsedRequest:
    body = {"model": "demo", "messages": MESSAGES, **fields}
    return parse_chat(orjson.dumps(body), lambda _name: limits)


def parse(**fields: Any) -> ParsedRequest:
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


OWN_WAYS = dataclasses.replace(
    LIMITS,
    extras=frozenset({"top_k"}),
    sampling={"temperature": 0.6, "top_k": 40},
    output_tokens_default=100,
)


def test_a_models_defaults_hold_where_a_request_does_not_say() -> None:
    chat = parse_with(OWN_WAYS, {"temperature": 0})
    assert chat.body == {"messages": MESSAGES, "temperature": 0, "top_k": 40}
    assert (chat.output_tokens_max, chat.output_tokens_given) == (100, False)
    asked = parse_with(OWN_WAYS, {"max_tokens": 512, "top_k": 1, "temperature": None})
    assert asked.body == {"messages": MESSAGES, "temperature": 0.6, "top_k": 1}
    assert (asked.output_tokens_max, asked.output_tokens_given) == (512, True)


def test_only_the_extras_that_a_model_allows_may_be_used() -> None:
    assert parse_with(OWN_WAYS, {"top_k": 3}).body["top_k"] == 3
    for name, value in {"regex": "a+", "ignore_eos": True, "chat_template_kwargs": {}}.items():
        error = refusal_with(OWN_WAYS, {name: value})
        assert (error.code, error.param) == ("unsupported_parameter", name)
        assert name in error.message
        assert "demo" in error.message
