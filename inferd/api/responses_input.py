"""`input`, `tools`, `tool_choice` and `text` of a response, as a chat completion writes them.

Pure. Only the form is turned here; what it says is checked by the rules of chat completions, whose
errors `responses` then says of the parameters that the client sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from inferd.api.fields import (
    as_array,
    as_object,
    as_string,
    missing,
    not_supported_value,
    only_keys,
    string,
    wrong_type,
)
from inferd.api.messages import MESSAGES_MAX, PARTS_MAX
from inferd.api.tools import TOOLS_MAX
from inferd.errors import UnsupportedFeature

TEXT_CHARS_MAX: Final = 1_073_741_824
"""A text is bounded by the body it came in and by the model's context, not for itself."""

_MESSAGE: Final = frozenset({"type", "role", "content", "id", "status", "phase"})
_CALL: Final = frozenset({"type", "call_id", "name", "arguments", "id", "status"})
_OUTPUT: Final = frozenset({"type", "call_id", "output", "id", "status"})
_ROLES: Final = ("user", "assistant", "system", "developer")
_PARTS: Final = {
    "input_text": frozenset({"type", "text", "prompt_cache_breakpoint"}),
    "output_text": frozenset({"type", "text", "annotations", "logprobs"}),
    "refusal": frozenset({"type", "refusal"}),
}
_MEDIA: Final = ("input_image", "input_file", "input_audio", "computer_screenshot")
_FUNCTION: Final = frozenset({"type", "name", "description", "parameters", "strict"})
_NAMED: Final = frozenset({"type", "name"})
_FORMATS: Final = ("text", "json_object", "json_schema")
_FORMAT_KEYS: Final = frozenset({"type", "name", "schema", "strict", "description"})


@dataclass(slots=True)
class Conversation:
    """Messages of a chat, and for each the item it came from."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)

    def add(self, message: dict[str, Any], origin: int) -> None:
        self.messages.append(message)
        self.origins.append(origin)


def check_input(value: object, path: str) -> Conversation:
    """A text, or items: messages, calls and their outputs; what a model thought is left out.

    Raises:
        RequestError: with the path of what is wrong.
    """
    found = Conversation()
    if isinstance(value, str):
        found.add({"role": "user", "content": string(TEXT_CHARS_MAX)(value, path)}, 0)
        return found
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array", value)
    for index, item in enumerate(as_array(value, path, MESSAGES_MAX)):
        where = f"{path}[{index}]"
        _add(found, as_object(item, where), where, index)
    return found


def _add(found: Conversation, item: dict[str, object], path: str, index: int) -> None:
    kind = as_string(item.get("type", "message"), f"{path}.type")
    match kind:
        case "message":
            found.add(_message(item, path), index)
        case "function_call":
            call = _call(item, path)
            last = found.messages[-1] if found.messages else None
            if last is None or last["role"] != "assistant":
                found.add({"role": "assistant", "content": None, "tool_calls": []}, index)
            found.messages[-1].setdefault("tool_calls", []).append(call)
        case "function_call_output":
            found.add(_output(item, path), index)
        case "reasoning":
            return
        case _:
            raise UnsupportedFeature(
                f"Invalid '{path}.type': items of this type are not supported. Send 'message', "
                "'function_call', 'function_call_output' or 'reasoning' items.",
                code="unsupported_value",
                param=f"{path}.type",
            )


def _message(item: dict[str, object], path: str) -> dict[str, Any]:
    only_keys(item, path, _MESSAGE)
    for key in ("role", "content"):
        if key not in item:
            raise missing(f"{path}.{key}")
    role = as_string(item["role"], f"{path}.role")
    if role not in _ROLES:
        raise not_supported_value(f"{path}.role", role, _ROLES)
    return {"role": role, "content": _texts(item["content"], f"{path}.content")}


def _texts(value: object, path: str) -> object:
    """A text as it is; parts as a chat's."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of parts", value)
    parts = []
    for index, part in enumerate(as_array(value, path, PARTS_MAX)):
        where = f"{path}[{index}]"
        given = as_object(part, where)
        kind = as_string(given.get("type"), f"{where}.type")
        if kind in _MEDIA:
            raise UnsupportedFeature(
                f"Invalid '{where}.type': got '{kind}', but this model takes text only.",
                code="unsupported_value",
                param=f"{where}.type",
            )
        if kind not in _PARTS:
            raise not_supported_value(f"{where}.type", kind, tuple(_PARTS))
        only_keys(given, where, _PARTS[kind])
        key = "refusal" if kind == "refusal" else "text"
        if key not in given:
            raise missing(f"{where}.{key}")
        parts.append({"type": "text", "text": as_string(given[key], f"{where}.{key}")})
    return parts


def _call(item: dict[str, object], path: str) -> dict[str, Any]:
    only_keys(item, path, _CALL)
    for key in ("call_id", "name", "arguments"):
        if key not in item:
            raise missing(f"{path}.{key}")
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _output(item: dict[str, object], path: str) -> dict[str, Any]:
    only_keys(item, path, _OUTPUT)
    for key in ("call_id", "output"):
        if key not in item:
            raise missing(f"{path}.{key}")
    content = _texts(item["output"], f"{path}.output")
    return {"role": "tool", "tool_call_id": item["call_id"], "content": content}


def flat_tools(value: object, path: str) -> list[dict[str, Any]]:
    """Functions, as a chat writes them.

    Raises:
        RequestError: a tool that the public API runs itself, or one of another form.
    """
    if value == []:
        return []
    found = []
    for index, tool in enumerate(as_array(value, path, TOOLS_MAX)):
        where = f"{path}[{index}]"
        given = as_object(tool, where)
        if "type" not in given:
            raise missing(f"{where}.type")
        kind = as_string(given["type"], f"{where}.type")
        if kind != "function":
            raise UnsupportedFeature(
                f"Invalid '{where}.type': only tools of type 'function' are supported; "
                "what a model calls is run by you.",
                code="unsupported_value",
                param=f"{where}.type",
            )
        only_keys(given, where, _FUNCTION)
        function = {key: item for key, item in given.items() if key != "type"}
        found.append({"type": "function", "function": function})
    return found


def flat_choice(value: object, path: str) -> object:
    """`tool_choice` as a chat writes it."""
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    if kind == "function":
        only_keys(value, path, _NAMED)
        return {"type": kind, "function": {key: value[key] for key in value if key != "type"}}
    if kind == "allowed_tools":
        tools = value.get("tools")
        if isinstance(tools, list):
            tools = [flat_choice(tool, path) for tool in tools]
        return {"type": kind, "allowed_tools": {**_without(value, "type"), "tools": tools}}
    return value


def _without(value: dict[str, object], key: str) -> dict[str, object]:
    return {name: item for name, item in value.items() if name != key}


def flat_format(value: object, path: str) -> dict[str, Any] | None:
    """`text` as a chat's `response_format`; None for plain text."""
    given = as_object(value, path)
    only_keys(given, path, frozenset({"format", "verbosity"}))
    if given.get("verbosity") not in (None, "medium"):
        raise UnsupportedFeature(
            f"Unsupported value: '{path}.verbosity' supports 'medium' only.",
            code="unsupported_value",
            param=f"{path}.verbosity",
        )
    if given.get("format") is None:
        return None
    path = f"{path}.format"
    shape = as_object(given["format"], path)
    kind = as_string(shape.get("type"), f"{path}.type")
    if kind not in _FORMATS:
        raise not_supported_value(f"{path}.type", kind, _FORMATS)
    if kind != "json_schema":
        only_keys(shape, path, frozenset({"type"}))
        return {"type": kind}
    only_keys(shape, path, _FORMAT_KEYS)
    return {"type": kind, "json_schema": _without(shape, "type")}
