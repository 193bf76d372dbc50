"""A plain completion's body: its prompts, its own parameters, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from inferd.api.completions import END_OF_TEXT, SEQUENCES_MAX, parse_completion
from inferd.api.parsed import ParsedRequest
from inferd.errors import ContextLengthExceeded, RequestError
from inferd.inference import ModelLimits, Priority

LIMITS = ModelLimits(
    name="demo",
    context_tokens_max=4_096,
    output_tokens_max=512,
    choices_max=8,
    vocabulary_tokens=1_000,
)


def parse(limits: ModelLimits = LIMITS, **fields: Any) -> ParsedRequest:
    body = {"model": "demo", "prompt": "Once", **fields}
    return parse_completion(orjson.dumps(body), lambda _name: limits, Priority.INTERACTIVE)


def refusal(limits: ModelLimits = LIMITS, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(limits, **fields)
    return caught.value


@pytest.mark.parametrize(
    ("prompt", "prompts", "size", "ids"),
    [
        ("Once", 1, 4, 0),
        (["Once", "né"], 2, 7, 0),
        ([1, 2, 999], 1, 0, 3),
        ([[1], [2, 3]], 2, 0, 3),
    ],
)
def test_a_prompt_is_text_or_ids_one_or_many(
    prompt: Any, prompts: int, size: int, ids: int
) -> None:
    parsed = parse(prompt=prompt)
    assert parsed.body["prompt"] == prompt
    assert (parsed.prompts, parsed.prompt_bytes, parsed.prompt_tokens) == (prompts, size, ids)
    assert parsed.choices == prompts


@pytest.mark.parametrize(
    ("prompt", "param", "code"),
    [
        ("", "prompt", "empty_string"),
        ([], "prompt", "empty_array"),
        (["a", ""], "prompt[1]", "empty_string"),
        (["a", 1], "prompt[1]", "invalid_type"),
        ([1, "a"], "prompt[1]", "invalid_type"),
        ([True], "prompt[0]", "invalid_type"),
        ([[]], "prompt[0]", "empty_array"),
        ([-1], "prompt[0]", "integer_below_min_value"),
        ([1_000], "prompt", "invalid_value"),
        (["a"] * 65, "prompt", "array_above_max_length"),
        ({"text": "a"}, "prompt", "invalid_type"),
    ],
)
def test_any_other_prompt_is_refused_by_its_path(prompt: Any, param: str, code: str) -> None:
    error = refusal(prompt=prompt)
    assert (error.param, error.code) == (param, code)
    assert param in error.message


def test_ids_are_refused_while_the_vocabulary_is_unknown_for_an_engine_dies_of_a_wrong_one() -> (
    None
):
    unknown = ModelLimits(
        name="demo", context_tokens_max=4_096, output_tokens_max=512, choices_max=8
    )
    assert refusal(unknown, prompt=[1]).code == "unsupported_value"
    assert parse(unknown, stop_token_ids=[5_000]).body["stop_token_ids"] == [5_000]
    assert refusal(unknown, stop_token_ids=[5_000], min_tokens=1).param == "stop_token_ids"
    assert refusal(stop_token_ids=[5_000]).param == "stop_token_ids"


def test_null_is_the_start_of_a_text_and_no_prompt_is_an_error() -> None:
    assert parse(prompt=None).body["prompt"] == END_OF_TEXT
    with pytest.raises(RequestError, match="'prompt'"):
        parse_completion(b'{"model": "demo"}', lambda _name: LIMITS, Priority.INTERACTIVE)


def test_sequences_are_the_choices_of_every_prompt_and_bounded() -> None:
    parsed = parse(prompt=["a", "b"], n=3)
    assert (parsed.choices, parsed.body["n"]) == (6, 3)
    assert "n" not in parse().body
    error = refusal(prompt=["a"] * 9, n=8)
    assert error.param == "n"
    assert str(SEQUENCES_MAX) in error.message


def test_sixteen_tokens_without_a_limit_and_never_none() -> None:
    assert (parse().output_tokens_max, parse().output_tokens_given) == (16, True)
    assert parse(max_tokens=9).output_tokens_max == 9
    assert refusal(max_tokens=0, echo=True).code == "integer_below_min_value"
    assert refusal(max_tokens=513).code == "integer_above_max_value"
    assert refusal(max_tokens=4, min_tokens=5).param == "min_tokens"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 21}, "best_of"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": True, "logprobs": 0}, "logprobs"),
        ({"regex": "a", "ebnf": "b"}, "ebnf"),
        ({"stream_options": {}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"rid": "x"}, "rid"),
        ({"tools": []}, "tools"),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refusal(**fields)
    assert error.param == param
    assert f"'{param}'" in error.message


def test_what_surely_does_not_fit_is_refused_at_once() -> None:
    small = ModelLimits(
        name="demo",
        context_tokens_max=4,
        output_tokens_max=4,
        choices_max=1,
        vocabulary_tokens=10,
    )
    with pytest.raises(ContextLengthExceeded, match="prompt"):
        parse(small, prompt=[1, 2, 3, 4, 5], max_tokens=1)
    with pytest.raises(ContextLengthExceeded, match="prompts hold"):
        parse(small, prompt="x" * 2_049, max_tokens=1)


def test_a_models_defaults_and_extras_hold_here_as_well() -> None:
    limits = replace(LIMITS, extras=frozenset(), sampling={"temperature": 0.6})
    assert parse(limits).body["temperature"] == 0.6
    assert parse(limits).output_tokens_max == 16
    error = refusal(limits, regex="a+")
    assert (error.code, error.param) == ("unsupported_parameter", "regex")
