"""An embedding's body: its inputs, sizes and formats."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from inferd.api.embeddings import parse_embedding
from inferd.api.parsed import ParsedRequest
from inferd.errors import RequestError
from inferd.inference import ModelKind, ModelLimits, Priority

LIMITS = ModelLimits(
    name="embed",
    context_tokens_max=512,
    output_tokens_max=1,
    choices_max=1,
    kind=ModelKind.EMBEDDING,
    dimensions=(64, 128),
    vocabulary_tokens=1_000,
)


def parse(**fields: Any) -> ParsedRequest:
    body = {"model": "embed", "input": "hello", **fields}
    return parse_embedding(orjson.dumps(body), lambda _name: LIMITS, Priority.INTERACTIVE)


def test_inputs_go_to_the_engine_as_they_are_and_cost_no_output() -> None:
    parsed = parse(input=["hello", "you"], user="someone")
    assert parsed.body == {"input": ["hello", "you"], "encoding_format": "float"}
    assert (parsed.choices, parsed.prompt_bytes, parsed.output_tokens_max) == (2, 8, 0)
    assert parsed.user_hash is not None


@pytest.mark.parametrize("given", ["hi", ["hi"] * 2_048, [1] * 512, [[1, 2]] * 100])
def test_every_form_of_input_is_taken(given: Any) -> None:
    assert parse(input=given).body["input"] == given


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": ""}, "input", "empty_string"),
        ({"input": " \n"}, "input", "empty_string"),
        ({"input": ["a", "\t"]}, "input[1]", "empty_string"),
        ({"input": []}, "input", "empty_array"),
        ({"input": ["a"] * 2_049}, "input", "array_above_max_length"),
        ({"input": [1_000]}, "input", "invalid_value"),
        ({"input": [1] * 513}, "input", "context_length_exceeded"),
        ({"input": {"text": "a"}}, "input", "invalid_type"),
        ({"input": [{"text": "a"}]}, "input[0]", "invalid_type"),
        ({"encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ({"dimensions": 0}, "dimensions", "integer_below_min_value"),
        ({"dimensions": 65}, "dimensions", "unsupported_value"),
        ({"embed_overrides": []}, "embed_overrides", "unknown_parameter"),
    ],
)
def test_anything_else_is_refused_by_its_path(
    fields: dict[str, Any], param: str, code: str
) -> None:
    with pytest.raises(RequestError) as caught:
        parse(**fields)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_sizes_are_those_of_the_model() -> None:
    assert parse(dimensions=64).body["dimensions"] == 64
