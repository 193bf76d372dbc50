"""`response_format` and the bounds of JSON schemas."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from inferd.api.json_schema import SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX, depth_of
from inferd.api.response_format import check_response_format
from inferd.errors import RequestError

CITY: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}


def with_schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, **more}}


def refusal(value: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_response_format(value, "response_format")
    return caught.value


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels - 1):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "json_object"}),
        (with_schema(CITY), with_schema(CITY)),
        (
            with_schema(CITY, strict=True, description="a city"),
            with_schema(CITY, description="a city", strict=True),
        ),
        (with_schema({}, strict=None, description=None), with_schema({})),
    ],
)
def test_what_the_engine_gets(value: Any, expected: Any) -> None:
    assert check_response_format(value, "response_format") == expected


@pytest.mark.parametrize(
    ("value", "code", "param"),
    [
        ("json", "invalid_type", "response_format"),
        ({}, "missing_required_parameter", "response_format.type"),
        ({"type": 1}, "invalid_type", "response_format.type"),
        ({"type": "structural_tag"}, "invalid_value", "response_format.type"),
        ({"type": "json_object", "schema": {}}, "unknown_parameter", "response_format.schema"),
        (
            {"type": "json_schema"},
            "missing_required_parameter",
            "response_format.json_schema",
        ),
        (
            {"type": "json_schema", "json_schema": []},
            "invalid_type",
            "response_format.json_schema",
        ),
        (
            {"type": "json_schema", "json_schema": {"schema": CITY}},
            "missing_required_parameter",
            "response_format.json_schema.name",
        ),
        # Without a schema the answer would be unconstrained, silently.
        (
            {"type": "json_schema", "json_schema": {"name": "x"}},
            "missing_required_parameter",
            "response_format.json_schema.schema",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "a.b", "schema": CITY}},
            "invalid_value",
            "response_format.json_schema.name",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "a" * 65, "schema": CITY}},
            "string_above_max_length",
            "response_format.json_schema.name",
        ),
        (with_schema([]), "invalid_type", "response_format.json_schema.schema"),
        (with_schema(CITY, strict=1), "invalid_type", "response_format.json_schema.strict"),
        (with_schema(CITY, extra=1), "unknown_parameter", "response_format.json_schema.extra"),
        (with_schema({"type": "nonsense"}), "invalid_json_schema", "response_format"),
    ],
)
def test_a_wrong_format_is_refused_with_its_code_and_path(
    value: Any, code: str, param: str
) -> None:
    error = refusal(value)
    assert (error.status, error.code, error.param) == (400, code, param)
    assert f"'{param}'" in error.message


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "nonsense"}, "#/type"),
        ({"type": 1}, "#/type"),
        ({"type": []}, "#/type"),
        ({"type": ["string", "dict"]}, "#/type"),
        ({"properties": []}, "#/properties"),
        ({"properties": {"a": 1}}, "#/properties/a"),
        ({"properties": {"a": {"type": "int"}}}, "#/properties/a/type"),
        ({"items": "string"}, "#/items"),
        ({"items": [{"type": "x"}]}, "#/items/0/type"),
        ({"anyOf": []}, "#/anyOf"),
        ({"anyOf": {}}, "#/anyOf"),
        ({"anyOf": [{}, {"type": "x"}]}, "#/anyOf/1/type"),
        ({"not": 1}, "#/not"),
        ({"$defs": {"a": {"$ref": "https://example.com/s.json"}}}, "#/$defs/a/$ref"),
        ({"$ref": "file:///etc/passwd"}, "#/$ref"),
        ({"$ref": 1}, "#/$ref"),
        ({"required": "a"}, "#/required"),
        ({"required": [1]}, "#/required"),
        ({"enum": []}, "#/enum"),
        ({"enum": "a"}, "#/enum"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(schema: dict[str, Any], place: str) -> None:
    error = refusal(with_schema(schema))
    assert error.code == "invalid_json_schema"
    assert f"'{place}'" in error.message


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["string", "null"], "additionalProperties": False},
        {"items": True, "prefixItems": [{"type": "integer"}]},
        {"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
        {"enum": [1, None, {"type": "nonsense"}], "default": [], "examples": [{"type": "x"}]},
        {"properties": {"type": {"type": "string"}, "enum": {"type": "array"}}},
        {"type": "object", "patternProperties": {"^a": {}}, "unknown": {"a": 1}},
    ],
)
def test_what_is_a_schema_passes(schema: dict[str, Any]) -> None:
    assert check_response_format(with_schema(schema), "response_format") == with_schema(schema)


def test_size_and_depth_are_bounded() -> None:
    check_response_format(with_schema(nested(SCHEMA_DEPTH_MAX)), "response_format")
    for deep in (nested(SCHEMA_DEPTH_MAX + 1), nested(400), {"default": nested(SCHEMA_DEPTH_MAX)}):
        assert "nested too deeply" in refusal(with_schema(deep)).message
    fits = {"description": "x" * (SCHEMA_BYTES_MAX - len('{"description":""}'))}
    assert len(orjson.dumps(fits)) == SCHEMA_BYTES_MAX
    check_response_format(with_schema(fits), "response_format")
    large = {"description": fits["description"] + "x"}
    error = refusal(with_schema(large))
    assert (error.code, error.param) == ("invalid_json_schema", "response_format")
    assert str(SCHEMA_BYTES_MAX) in error.message


@pytest.mark.parametrize(
    ("value", "depth"), [(1, 0), ("x", 0), ([], 1), ({"a": [1, {"b": 2}]}, 3), ([[[[]]]], 3)]
)
def test_depth_counts_levels_up_to_its_bound(value: Any, depth: int) -> None:
    assert depth_of(value, 2) == depth
