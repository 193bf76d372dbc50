"""`tools`, `tool_choice`, `parallel_tool_calls`: what may be called, and what the engine is told.

Pure. The engine enforces a function's schema only where the function says `strict`. A call that is
forced (`required`, or one function by name) is made strict here when its schema can be enforced and
the client did not say otherwise: without that the engine answers a forced call with any JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from inferd.api import enforceable
from inferd.api.fields import (
    as_array,
    as_name,
    as_object,
    as_string,
    boolean,
    missing,
    not_supported_value,
    only_keys,
    utf8_bytes,
    wrong_type,
)
from inferd.api.json_schema import SchemaChecker
from inferd.errors import InvalidField, UnsupportedFeature

TOOLS_MAX: Final = 128
_TOOL: Final = frozenset({"type", "function"})
_FUNCTION: Final = frozenset({"name", "description", "parameters", "strict"})
_SHAPERS: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf", "const", "enum"})
_MODES: Final = ("none", "auto", "required")
_CHOICE_TYPES: Final = ("function", "allowed_tools")
_NAMED: Final = frozenset({"type", "function"})
_NAME_ONLY: Final = frozenset({"name"})
_ALLOWED: Final = frozenset({"type", "allowed_tools"})
_ALLOWED_TOOLS: Final = frozenset({"mode", "tools"})
_ALLOWED_MODES: Final = ("auto", "required")


@dataclass(slots=True)
class Tools:
    """Checked functions by name, in the client's order."""

    functions: dict[str, dict[str, object]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of name, description and schema: the chat template puts them into the prompt."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A checked `tool_choice`: `named` is one function, `allowed` a subset."""

    mode: str
    named: str | None = None
    allowed: frozenset[str] | None = None

    @property
    def forced(self) -> bool:
        return self.named is not None or self.mode == "required"


def check_tools(value: object) -> Tools:
    """Raises: RequestError, with the path of what is wrong."""
    tools = Tools()
    if value == []:
        return tools
    for index, tool in enumerate(as_array(value, "tools", TOOLS_MAX)):
        _add(tools, tool, f"tools[{index}]")
    return tools


def _add(tools: Tools, value: object, path: str) -> None:
    given = as_object(value, path)
    if "type" not in given:
        raise missing(f"{path}.type")
    kind = as_string(given["type"], f"{path}.type")
    if kind == "custom":
        raise UnsupportedFeature(
            f"Invalid '{path}.type': custom tools are not supported. Use 'function'.",
            code="unsupported_value",
            param=f"{path}.type",
        )
    if kind != "function":
        raise not_supported_value(f"{path}.type", kind, ("function",))
    only_keys(given, path, _TOOL)
    if "function" not in given:
        raise missing(f"{path}.function")
    path = f"{path}.function"
    function = as_object(given["function"], path)
    only_keys(function, path, _FUNCTION)
    if "name" not in function:
        raise missing(f"{path}.name")
    name = as_name(function["name"], f"{path}.name")
    if name in tools.functions:
        raise InvalidField(
            f"Invalid '{path}.name': '{name}' is the name of another tool. Names must differ.",
            param=f"{path}.name",
        )
    tools.functions[name] = _function(tools, name, function, path)


def _function(tools: Tools, name: str, function: dict[str, object], path: str) -> dict[str, object]:
    # Keys keep the client's order: chat templates print a function as it is given.
    checked: dict[str, object] = {k: v for k, v in function.items() if v is not None}
    size = len(name)
    if "description" in checked:
        size += utf8_bytes(as_string(checked["description"], f"{path}.description"))
    tools.sizes[name] = size
    strict = boolean(checked["strict"], f"{path}.strict") if "strict" in checked else False
    if "parameters" not in checked:
        nothing: dict[str, object] = {"type": "object", "properties": {}}
        checked["parameters"] = nothing | {"additionalProperties": False} if strict else nothing
        return checked
    where = f"{path}.parameters"
    schema = as_object(checked["parameters"], where)
    if schema.get("type", "object") != "object":
        raise InvalidField(
            f"Invalid '{where}': arguments are an object, so the schema's 'type' must be 'object'.",
            code="invalid_function_parameters",
            param=where,
        )
    checker = SchemaChecker(where, "invalid_function_parameters")
    tools.sizes[name] += checker.check(schema)
    if strict:
        checker.check_enforceable(schema)
        checked["parameters"] = _an_object(schema)
    return checked


def _an_object(schema: dict[str, object]) -> dict[str, object]:
    """Arguments are an object, whether or not the schema says so: the grammar must know it."""
    return schema if "type" in schema or _SHAPERS & schema.keys() else {**schema, "type": "object"}


def check_choice(value: object, path: str) -> Choice:
    """The form of `tool_choice`; names are looked up by `apply`."""
    if isinstance(value, str):
        if value not in _MODES:
            raise not_supported_value(path, value, _MODES)
        return Choice(value)
    if not isinstance(value, dict):
        raise wrong_type(path, "a string or an object", value)
    if "type" not in value:
        raise missing(f"{path}.type")
    kind = as_string(value["type"], f"{path}.type")
    if kind == "function":
        only_keys(value, path, _NAMED)
        return Choice("required", named=_named(value, path))
    if kind == "allowed_tools":
        only_keys(value, path, _ALLOWED)
        return _allowed(value, path)
    if kind == "custom":
        raise UnsupportedFeature(
            f"Invalid '{path}.type': custom tools are not supported. Use 'function'.",
            code="unsupported_value",
            param=f"{path}.type",
        )
    raise not_supported_value(f"{path}.type", kind, _CHOICE_TYPES)


def _named(value: dict[str, object], path: str) -> str:
    if "function" not in value:
        raise missing(f"{path}.function")
    function = as_object(value["function"], f"{path}.function")
    only_keys(function, f"{path}.function", _NAME_ONLY)
    if "name" not in function:
        raise missing(f"{path}.function.name")
    return as_name(function["name"], f"{path}.function.name")


def _allowed(value: dict[str, object], path: str) -> Choice:
    path = f"{path}.allowed_tools"
    if "allowed_tools" not in value:
        raise missing(path)
    allowed = as_object(value["allowed_tools"], path)
    only_keys(allowed, path, _ALLOWED_TOOLS)
    for key in ("mode", "tools"):
        if key not in allowed:
            raise missing(f"{path}.{key}")
    mode = as_string(allowed["mode"], f"{path}.mode")
    if mode not in _ALLOWED_MODES:
        raise not_supported_value(f"{path}.mode", mode, _ALLOWED_MODES)
    names = set()
    for index, tool in enumerate(as_array(allowed["tools"], f"{path}.tools", TOOLS_MAX)):
        where = f"{path}.tools[{index}]"
        given = as_object(tool, where)
        kind = as_string(given.get("type", "function"), f"{where}.type")
        if kind != "function":
            raise not_supported_value(f"{where}.type", kind, ("function",))
        only_keys(given, where, _NAMED)
        names.add(_named(given, where))
    return Choice(mode, allowed=frozenset(names))


def apply(tools: Tools, choice: Choice | None, body: dict[str, object]) -> int:
    """Put the tools that may be called, and how, into the engine's body.

    Returns the bytes that they add to the prompt.

    Raises:
        InvalidField: a call is asked for without tools, or a chosen name is no tool.
    """
    if not tools.functions:
        if choice is not None and (choice.forced or choice.allowed is not None):
            raise InvalidField(
                "Invalid 'tool_choice': a call can only be asked for when 'tools' are given.",
                param="tool_choice",
            )
        return 0
    choice = choice or Choice("auto")
    functions = _chosen(tools.functions, choice)
    if choice.forced:
        for function in functions.values():
            _hold(function)
    body["tools"] = [{"type": "function", "function": f} for f in functions.values()]
    body["tool_choice"] = (
        choice.mode
        if choice.named is None
        else {"type": "function", "function": {"name": choice.named}}
    )
    return 0 if choice.mode == "none" else sum(tools.sizes[name] for name in functions)


def _hold(function: dict[str, Any]) -> None:
    """Make a forced call strict if it can be and the client did not say otherwise."""
    schema = function["parameters"]
    if "strict" not in function and enforceable.problem(schema) is None:
        function["strict"] = True
        function["parameters"] = _an_object(schema)


def _chosen(
    functions: dict[str, dict[str, object]], choice: Choice
) -> dict[str, dict[str, object]]:
    """The functions that may be called, in the client's order."""
    wanted = choice.allowed if choice.named is None else frozenset({choice.named})
    if wanted is None:
        return functions
    if lost := sorted(wanted - functions.keys()):
        raise InvalidField(
            f"Invalid 'tool_choice': '{lost[0]}' is not the name of a tool in 'tools'.",
            param="tool_choice",
        )
    return {name: function for name, function in functions.items() if name in wanted}
