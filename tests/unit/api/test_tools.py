"""Tools: what may be declared, how a choice reaches the engine, and when a schema is enforced."""

from __future__ import annotations

from typing import Any

import pytest

from inferd.api.tools import TOOLS_MAX, apply, check_choice, check_tools
from inferd.errors import RequestError

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ODD = {"type": "object", "properties": {"city": {"type": "string", "not": {}}}}


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def applied(tools: list[Any], choice: Any = None) -> dict[str, Any]:
    body: dict[str, Any] = {}
    apply(check_tools(tools), None if choice is None else check_choice(choice, "tool_choice"), body)
    return body


def functions(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {tool["function"]["name"]: tool["function"] for tool in body["tools"]}


def refusal(tools: Any, choice: Any = None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        applied(tools, choice)
    return caught.value


def test_tools_reach_the_engine_in_order_with_auto_as_default() -> None:
    body = applied([tool("b", description="B", parameters=CITY), tool("a", strict=True)])
    assert body["tool_choice"] == "auto"
    assert list(functions(body)) == ["b", "a"]
    assert functions(body)["b"] == {"name": "b", "description": "B", "parameters": CITY}


def test_a_function_without_parameters_takes_no_arguments() -> None:
    body = applied([tool("a"), tool("b", parameters=None, strict=True)])
    nothing = {"type": "object", "properties": {}}
    assert functions(body)["a"]["parameters"] == nothing
    assert functions(body)["b"]["parameters"] == {**nothing, "additionalProperties": False}


@pytest.mark.parametrize("mode", ["none", "auto", "required"])
def test_the_modes_pass(mode: str) -> None:
    assert applied([tool("a")], mode)["tool_choice"] == mode


def test_a_named_function_is_the_only_one_told() -> None:
    body = applied([tool("a"), tool("b")], named("b"))
    assert body["tool_choice"] == named("b")
    assert list(functions(body)) == ["b"]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_filtered_here_for_the_engine_does_not_know_them(mode: str) -> None:
    body = applied([tool("a"), tool("b"), tool("c")], allowed(mode, "c", "a"))
    assert body["tool_choice"] == mode
    assert list(functions(body)) == ["a", "c"]


@pytest.mark.parametrize("choice", ["required", named("a")])
def test_a_forced_call_is_enforced_where_the_engine_surely_can(choice: Any) -> None:
    assert functions(applied([tool("a", parameters=CITY)], choice))["a"]["strict"] is True
    assert "strict" not in functions(applied([tool("a", parameters=ODD)], choice))["a"]
    relaxed = applied([tool("a", parameters=CITY, strict=False)], choice)
    assert functions(relaxed)["a"]["strict"] is False


def test_a_call_that_is_not_forced_is_enforced_only_as_asked() -> None:
    body = applied([tool("a", parameters=CITY), tool("b", parameters=CITY, strict=True)])
    assert "strict" not in functions(body)["a"]
    assert functions(body)["b"]["strict"] is True


def test_no_tools_and_no_wish_for_any_leave_the_body_alone() -> None:
    assert applied([]) == {}
    assert applied([], "none") == {}
    assert applied([], "auto") == {}


@pytest.mark.parametrize("choice", ["required", named("a"), allowed("auto", "a")])
def test_a_call_cannot_be_asked_for_without_tools(choice: Any) -> None:
    error = refusal([], choice)
    assert (error.code, error.param) == ("invalid_value", "tool_choice")


@pytest.mark.parametrize("choice", [named("nope"), allowed("auto", "a", "nope")])
def test_a_chosen_name_must_be_a_tools(choice: Any) -> None:
    error = refusal([tool("a")], choice)
    assert (error.code, error.param) == ("invalid_value", "tool_choice")
    assert "'nope'" in error.message


def test_tools_add_to_the_prompt_what_the_template_prints() -> None:
    tools = [tool("a", description="héh", parameters=CITY), tool("bb")]
    body: dict[str, Any] = {}
    both = apply(check_tools(tools), None, body)
    assert both == 1 + 4 + len('{"type":"object","properties":{"city":{"type":"string"}},') + len(
        '"required":["city"]}'
    ) + len("bb")
    assert apply(check_tools(tools), check_choice(named("bb"), "tool_choice"), body) == 2
    assert apply(check_tools(tools), check_choice("none", "tool_choice"), body) == 0


@pytest.mark.parametrize(
    ("tools", "code", "param"),
    [
        ({}, "invalid_type", "tools"),
        ([tool(f"f{i}") for i in range(TOOLS_MAX + 1)], "array_above_max_length", "tools"),
        ([1], "invalid_type", "tools[0]"),
        ([{}], "missing_required_parameter", "tools[0].type"),
        ([{"type": "custom", "custom": {"name": "x"}}], "unsupported_value", "tools[0].type"),
        ([{"type": "web_search"}], "invalid_value", "tools[0].type"),
        ([{"type": "function"}], "missing_required_parameter", "tools[0].function"),
        ([{"type": "function", "function": 1}], "invalid_type", "tools[0].function"),
        ([{**tool("a"), "defer_loading": True}], "unknown_parameter", "tools[0].defer_loading"),
        ([tool("a", key_order=[])], "unknown_parameter", "tools[0].function.key_order"),
        (
            [{"type": "function", "function": {}}],
            "missing_required_parameter",
            "tools[0].function.name",
        ),
        ([tool("a"), tool("a.b")], "invalid_value", "tools[1].function.name"),
        ([tool("a b")], "invalid_value", "tools[0].function.name"),
        ([tool("naïve")], "invalid_value", "tools[0].function.name"),
        ([tool("a\n")], "invalid_value", "tools[0].function.name"),
        ([tool("")], "empty_string", "tools[0].function.name"),
        ([tool("a" * 65)], "string_above_max_length", "tools[0].function.name"),
        ([tool("a"), tool("a")], "invalid_value", "tools[1].function.name"),
        ([tool("a", description=1)], "invalid_type", "tools[0].function.description"),
        ([tool("a", strict="yes")], "invalid_type", "tools[0].function.strict"),
        ([tool("a", parameters=[])], "invalid_type", "tools[0].function.parameters"),
        (
            [tool("a", parameters={"type": "string"})],
            "invalid_function_parameters",
            "tools[0].function.parameters",
        ),
        # As a benchmark's data has them: not JSON types.
        (
            [tool("a", parameters={"type": "dict", "properties": {}})],
            "invalid_function_parameters",
            "tools[0].function.parameters",
        ),
        (
            [tool("a"), tool("b", parameters={"properties": {"x": {"type": "float"}}})],
            "invalid_function_parameters",
            "tools[1].function.parameters",
        ),
    ],
)
def test_a_wrong_tool_is_refused_with_its_code_and_path(tools: Any, code: str, param: str) -> None:
    error = refusal(tools)
    assert (error.status, error.code, error.param) == (400, code, param)
    assert f"'{param}'" in error.message


@pytest.mark.parametrize(
    ("choice", "code", "param"),
    [
        ("always", "invalid_value", "tool_choice"),
        (1, "invalid_type", "tool_choice"),
        ([], "invalid_type", "tool_choice"),
        ({}, "missing_required_parameter", "tool_choice.type"),
        ({"type": "custom", "custom": {"name": "a"}}, "unsupported_value", "tool_choice.type"),
        ({"type": "other"}, "invalid_value", "tool_choice.type"),
        ({"type": "function"}, "missing_required_parameter", "tool_choice.function"),
        ({"type": "function", "function": "a"}, "invalid_type", "tool_choice.function"),
        (
            {"type": "function", "function": {}},
            "missing_required_parameter",
            "tool_choice.function.name",
        ),
        ({**named("a"), "x": 1}, "unknown_parameter", "tool_choice.x"),
        ({"type": "allowed_tools"}, "missing_required_parameter", "tool_choice.allowed_tools"),
        (
            {"type": "allowed_tools", "allowed_tools": {"tools": [named("a")]}},
            "missing_required_parameter",
            "tool_choice.allowed_tools.mode",
        ),
        (allowed("none", "a"), "invalid_value", "tool_choice.allowed_tools.mode"),
        (allowed("auto"), "empty_array", "tool_choice.allowed_tools.tools"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "x"}]}},
            "invalid_value",
            "tool_choice.allowed_tools.tools[0].type",
        ),
    ],
)
def test_a_wrong_choice_is_refused_with_its_code_and_path(
    choice: Any, code: str, param: str
) -> None:
    error = refusal([tool("a")], choice)
    assert (error.status, error.code, error.param) == (400, code, param)
    assert f"'{param}'" in error.message
