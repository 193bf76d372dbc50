"""Which schemas a grammar holds exactly, and how those that it does not hold are refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.api import enforceable, safe_pattern
from inferd.api.json_schema import SchemaChecker
from inferd.errors import InvalidField

SUITE = Path(__file__).parents[2] / "data" / "json_schema_suite"
INT = {"type": "integer"}
TEXT = {"type": "string"}


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def union(*branches: Any) -> dict[str, Any]:
    return {"oneOf": list(branches)}


MANY = an_object(**{f"p{i}": INT for i in range(17)})
CAT = an_object(kind={"const": "cat", "type": "string"}, lives=INT)
DOG = an_object(kind={"enum": ["dog", "hound"]}, name=TEXT)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        an_object(city={**TEXT, "maxLength": 30}, stars={**INT, "minimum": 1, "maximum": 5}),
        {"properties": {"a": INT}, "required": ["a"]},
        {**an_object(a=INT), "additionalProperties": {"type": "string"}},
        {"type": "object", "patternProperties": {"^x": INT}, "additionalProperties": False},
        {"type": "object", "additionalProperties": INT, "propertyNames": {"pattern": "^[a-z]+$"}},
        {**an_object(a=INT), "maxProperties": 2},
        {"type": ["string", "null"], "maxLength": 5},
        {"type": "string", "format": "date-time"},
        {"type": "integer", "format": "int32"},
        {"type": "string", "pattern": r"^[A-Z]{2}-\d+$"},
        {"type": "string", "enum": ["a", "b"], "description": "one"},
        {"enum": [1, None, "x"]},
        {"type": "number", "exclusiveMinimum": 0.5},
        {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3, "uniqueItems": False},
        {"type": "array", "prefixItems": [INT, TEXT], "items": False},
        {"anyOf": [INT, {"type": "null"}], "default": None, "title": "maybe"},
        {"$defs": {"a": INT}, "allOf": [{"$ref": "#/$defs/a"}], "description": "as pydantic does"},
        union(INT, TEXT),
        union({"const": 1}, {"const": True}),
        {**union({"$ref": "#/$defs/c"}, {"$ref": "#/$defs/d"}), "$defs": {"c": CAT, "d": DOG}},
        an_object(value=INT, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"$id": "https://example.org/x", "$schema": "x", "x-own": {"not": "looked at"}},
    ],
)
def test_what_a_grammar_holds_passes(schema: dict[str, Any]) -> None:
    assert enforceable.problem(schema) is None


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        ({"not": INT}, "not", "#"),
        (an_object(a={"if": {}}), "if", "#/properties/a"),
        ({"type": "array", "items": {"multipleOf": 2}}, "multipleOf", "#/items"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems", "#"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties", "#"),
        ({"$dynamicRef": "#x"}, "$dynamicRef", "#"),
        ({"anyOf": [INT, {"minLength": 2}]}, "minLength", "#/anyOf/1"),
        ({"maximum": 3}, "maximum", "#"),
        ({"required": ["a"]}, "required", "#"),
        ({**an_object(a=INT), "required": ["b"]}, "required", "#"),
        ({"$defs": {"a": TEXT}, "$ref": "#/$defs/a", "maxLength": 1}, "maxLength", "#"),
        ({"type": "object", "anyOf": [{}, {}]}, "type", "#"),
        ({"enum": [1], "const": 1}, "enum", "#"),
        ({"type": "string", "enum": ["a", 1]}, "type", "#"),
        ({"type": "integer", "const": True}, "type", "#"),
        ({"allOf": [INT, {"type": "integer", "minimum": 1}]}, "allOf", "#"),
        (union(INT, {"type": "number"}), "oneOf", "#"),
        (union(an_object(a=INT), an_object(b=INT)), "oneOf", "#"),
        (union({"const": 1}, {"const": 1.0}), "oneOf", "#"),
        ({"$ref": "#/$defs/a"}, "$ref", "#"),
        ({"$defs": {"a/b": INT}, "$ref": "#/$defs/a~1b"}, "$ref", "#"),
        ({"$ref": "#anchor"}, "$ref", "#"),
        ({"$ref": "#"}, "$ref", "#"),
        (an_object(next={"$ref": "#"}), "$ref", "#/properties/next"),
        ({"type": "string", "format": "regex"}, "format", "#"),
        ({"type": "string", "format": ["date"]}, "format", "#"),
        ({"type": "string", "pattern": "a", "maxLength": 2}, "maxLength", "#"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern", "#"),
        ({"type": "object", "patternProperties": {"a(": INT}}, "patternProperties", "#"),
        ({**an_object(a=INT), "patternProperties": {"a": INT}}, "patternProperties", "#"),
        ({**an_object(a=INT), "propertyNames": {"maxLength": 1}}, "propertyNames", "#"),
        ({"type": "object", "propertyNames": {"not": {}}}, "propertyNames", "#"),
        ({"type": "array", "items": [INT]}, "items", "#"),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, "exclusiveMinimum", "#"),
        (an_object(a=False), "false", "#/properties/a"),
        (an_object(a={"$id": "x"}), "$id", "#/properties/a"),
        ({"enum": list(range(1_001))}, "enum", "#"),
        (an_object(**{f"p{i}": {**TEXT, "maxLength": i} for i in range(9)}), "maxLength", ""),
        (
            {**an_object(**{f"p{i}": INT for i in range(17)}), "minProperties": 2},
            "minProperties",
            "#",
        ),
        (an_object(**{f"p{i}": INT for i in range(1_024)}), "properties", "#"),
    ],
)
def test_what_a_grammar_would_leave_out_is_named_with_its_place(
    schema: dict[str, Any], keyword: str, pointer: str
) -> None:
    found = enforceable.problem(schema)
    assert found is not None
    assert found.keyword == keyword
    assert found.pointer.startswith(pointer)


def test_the_client_reads_keyword_place_and_reason() -> None:
    checker = SchemaChecker("tools[0].function.parameters", "invalid_function_parameters")
    with pytest.raises(InvalidField) as caught:
        checker.check_enforceable(an_object(a={"not": {}}))
    assert caught.value.message == (
        "Invalid 'tools[0].function.parameters': 'not' at '#/properties/a' of the schema cannot be "
        "enforced: it would be ignored."
    )
    assert caught.value.code == "invalid_function_parameters"


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "a", "^a$", "^a|b$", "(ab)+", "(?:a|b)*?", "[^a-z]{2,5}", r"\d+\.\d{2}", r"[\w-]+"),
        *(r"\u0041\x41", "é+", r"\$\^", "(a+)+b", "[a]", "a{0,1000}"),
    ],
)
def test_patterns_that_mean_the_same_to_the_grammar_pass(pattern: str) -> None:
    assert safe_pattern.problem(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    [
        *("(?=a)b", "(?!a)b", "(?<=a)b", "(?<n>a)", "(?i)a", r"(a)\1", r"\bfoo", r"\p{L}", r"\Z"),
        *("a**", "*a", "(", ")", "a)", "[", "[]", "[[:alpha:]]", "a{,2}", "a{3,1}", "a{1001}"),
        *("a^b", "$a", "(^a)", "(a$)", "a{200}{200}", "(a{200}){200}", "x" * 1_025, "a\\", "}"),
        "(" * 17 + "a" + ")" * 17,
    ],
)
def test_patterns_with_another_meaning_or_too_dear_are_refused(pattern: str) -> None:
    assert safe_pattern.problem(pattern)


@given(st.text(st.sampled_from("ab(){}[]*+?|^$\\d1,-:=!<"), max_size=30))
def test_no_pattern_breaks_the_reader(pattern: str) -> None:
    assert safe_pattern.problem(pattern) is None or safe_pattern.problem(pattern)


KEYWORDS = [
    *("$ref", "$defs", "$id", "type", "enum", "const", "properties", "required", "items"),
    *("prefixItems", "anyOf", "oneOf", "allOf", "pattern", "format", "minLength", "maximum"),
    *("propertyNames", "patternProperties", "minItems", "additionalProperties"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["#", "#/$defs", "string", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON)
def test_whatever_passes_the_shape_check_can_be_judged(value: Any) -> None:
    if not isinstance(value, dict):
        return
    checker = SchemaChecker("response_format", "invalid_json_schema")
    try:
        checker.check(value)
    except InvalidField:
        return
    enforceable.problem(value)


def test_a_hostile_schema_is_judged_in_no_time() -> None:
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(900)}
    many = {"oneOf": [an_object(kind={"const": i}) for i in range(60)]}
    fan = {"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i}"}] * 30} for i in range(33)}}
    start = time.thread_time()
    hostile: list[dict[str, Any]] = [{"$defs": chain, "$ref": "#/$defs/d0"}, many, fan]
    for schema in (*hostile, {"enum": [[]] * 30_000}):
        enforceable.problem(schema)
    assert time.thread_time() - start < 1.0


def refusal(schema: dict[str, Any]) -> str | None:
    checker = SchemaChecker("response_format", "invalid_json_schema")
    try:
        checker.check(schema)
        checker.check_enforceable(schema)
    except InvalidField as error:
        return error.message
    return None


def test_the_suite_is_honoured_or_refused_by_name() -> None:
    cases = [
        case["schema"]
        for file in sorted(SUITE.glob("*.json"))
        for case in json.loads(file.read_text(encoding="utf-8"))
        if isinstance(case["schema"], dict)
    ]
    refused = [message for schema in cases if (message := refusal(schema))]
    assert all("at '#" in message for message in refused)
    assert (len(cases) - len(refused), len(refused)) == (97, 284)
