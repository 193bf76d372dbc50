"""Whatever a body holds, every endpoint answers it or refuses it: nothing else is ever raised."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.api.inference_endpoint import Operation
from inferd.api.operations import OPERATIONS
from inferd.errors import RequestError
from inferd.inference import ModelKind, ModelLimits, Priority

REQUIRED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "input": "hi",
}
WORDS = [
    *("type", "function", "message", "text", "input_text", "json_schema", "schema", "format"),
    *("name", "role", "user", "assistant", "tool", "content", "arguments", "call_id", "output"),
    *("effort", "verbosity", "mode", "tools", "allowed_tools", "auto", "required", "medium", ""),
    *("function_call", "function_call_output", "tool_calls", "id", "parameters", "strict"),
]
WORD = st.sampled_from(WORDS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | WORD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORD, inner, max_size=4),
    max_leaves=12,
)


def limits(kind: ModelKind) -> ModelLimits:
    return ModelLimits(
        name="demo",
        context_tokens_max=4_096,
        output_tokens_max=512,
        choices_max=8,
        reasoning=True,
        kind=kind,
        dimensions=(64,),
        vocabulary_tokens=1_000,
    )


def names(operation: Operation) -> list[str]:
    tables = operation.tables
    return sorted({*tables.honoured, *tables.gateway, *tables.accepted, *tables.refused, "nothing"})


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.endpoint.value)
@given(data=st.data())
def test_a_body_is_parsed_or_refused(operation: Operation, data: st.DataObject) -> None:
    given_fields = data.draw(
        st.dictionaries(st.sampled_from(names(operation)), JSON, min_size=1, max_size=3)
    )
    body = {name: REQUIRED[name] for name in operation.required or ("prompt",)} | given_fields
    raw = json.dumps({"model": "demo", **body}).encode("utf-8", "replace")
    kind = min(operation.kinds)
    try:
        operation.parse(raw, lambda _name: limits(kind), Priority.INTERACTIVE)
    except RequestError as error:
        assert error.status in {400, 413}  # noqa: PT017 - both ends are right
