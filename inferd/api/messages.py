"""`messages`: roles, contents and the order of tool calls, checked and normalised in place.

Pure. A conversation of plain texts costs a few dictionary look-ups a message. `developer` becomes
`system`, for most chat templates do not know it; refusals become text; what the public API ignores
in a message that is sent back (annotations, parsed values) is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import orjson

from inferd.api.fields import (
    as_array,
    as_object,
    as_string,
    missing,
    not_supported_value,
    only_keys,
    text,
    utf8_bytes,
    wrong_type,
)
from inferd.api.json_schema import depth_of
from inferd.errors import InvalidField, RequestError, UnsupportedFeature

MESSAGES_MAX: Final = 2_048
PARTS_MAX: Final = 2_048
TOOL_CALLS_MAX: Final = 128
CALL_ID_CHARS_MAX: Final = 256
ARGUMENTS_DEPTH_MAX: Final = 32

_ROLES: Final = ("developer", "system", "user", "assistant", "tool")
_PLAIN_ROLES: Final = ("user", "assistant", "system")
_PLAIN_KEYS: Final = 2  # role and content, nothing else
_TEXT_ONLY: Final = frozenset({"role", "content", "name"})
_KEYS: Final = {
    "developer": _TEXT_ONLY,
    "system": _TEXT_ONLY,
    "user": _TEXT_ONLY,
    "tool": _TEXT_ONLY | {"tool_call_id"},
    "assistant": _TEXT_ONLY
    | {
        "annotations",
        "audio",
        "function_call",
        "parsed",
        "reasoning_content",
        "refusal",
        "tool_calls",
    },
}
# Written by the API or its SDK into an answer, so found in answers that are sent back.
_DROPPED: Final = ("annotations", "parsed")
_PART_TYPES: Final = {
    "developer": ("text",),
    "system": ("text",),
    "tool": ("text",),
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
}
_MEDIA: Final = frozenset({"image_url", "input_audio", "file"})
_TEXT_PART: Final = frozenset({"type", "text", "prompt_cache_breakpoint"})
_REFUSAL_PART: Final = frozenset({"type", "refusal", "prompt_cache_breakpoint"})
_CALL: Final = frozenset({"id", "type", "function", "index"})
_CALL_FUNCTION: Final = frozenset({"name", "arguments", "parsed_arguments"})
_call_id: Final[Callable[[object, str], str]] = text(CALL_ID_CHARS_MAX)


def check_messages(value: object) -> int:
    """Check the conversation; return the UTF-8 bytes of its text.

    Raises:
        RequestError: with the path of what is wrong.
    """
    messages = as_array(value, "messages", MESSAGES_MAX)
    prompt_bytes = 0
    turn = _ToolTurn()
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise wrong_type(f"messages[{index}]", "an object", message)
        role = message.get("role")
        content = message.get("content")
        if role in _PLAIN_ROLES and isinstance(content, str) and len(message) == _PLAIN_KEYS:
            prompt_bytes += len(content) if content.isascii() else len(content.encode())
            if role == "assistant" and turn.calls:
                turn.open(index, [])
        else:
            prompt_bytes += _Message(message, index, turn).check()
    turn.close()
    return prompt_bytes


class _ToolTurn:
    """The calls of the last assistant message, and which of them have no answer yet."""

    def __init__(self) -> None:
        self.calls: frozenset[str] = frozenset()
        self._index = 0
        self._waiting: dict[str, None] = {}

    def open(self, index: int, ids: list[str]) -> None:
        self.close()
        self.calls = frozenset(ids)
        self._index = index
        self._waiting = dict.fromkeys(ids)

    def answer(self, index: int, call_id: str) -> None:
        if call_id not in self.calls:
            raise RequestError(
                "Invalid 'messages': a message with role 'tool' must answer a call in 'tool_calls' "
                f"of a preceding assistant message; messages[{index}] answers none.",
                param=f"messages.[{index}].role",
            )
        self._waiting.pop(call_id, None)

    def close(self) -> None:
        if self._waiting:
            ids = ", ".join(list(self._waiting)[:8])
            raise RequestError(
                "Invalid 'messages': an assistant message with 'tool_calls' must be followed by "
                "messages with role 'tool' that answer each 'tool_call_id'. "
                f"Calls of messages[{self._index}] without an answer: {ids}.",
                param=f"messages.[{self._index}].role",
            )


class _Message:
    """One message that is more than a role and a text."""

    def __init__(self, message: dict[str, object], index: int, turn: _ToolTurn) -> None:
        self._message = message
        self._path = f"messages[{index}]"
        self._index = index
        self._turn = turn

    def check(self) -> int:
        message, path = self._message, self._path
        role = self._role()
        only_keys(message, path, _KEYS[role])
        for key in [key for key, value in message.items() if value is None and key != "content"]:
            del message[key]
        if "name" in message:
            as_string(message["name"], f"{path}.name")
        if role == "assistant":
            return self._assistant()
        if role == "developer":
            message["role"] = "system"
        if "content" not in message:
            raise missing(f"{path}.content")
        if role == "tool":
            if "tool_call_id" not in message:
                raise missing(f"{path}.tool_call_id")
            call_id = _call_id(message["tool_call_id"], f"{path}.tool_call_id")
            self._turn.answer(self._index, call_id)
        return self._content(role)

    def _role(self) -> str:
        path = f"{self._path}.role"
        if "role" not in self._message:
            raise missing(path)
        role = as_string(self._message["role"], path)
        if role == "function":
            raise UnsupportedFeature(
                f"Invalid '{path}': 'function' is the legacy form of tools and is not supported. "
                "Use role 'tool' with a 'tool_call_id'.",
                code="unsupported_value",
                param=path,
            )
        if role not in _KEYS:
            raise not_supported_value(path, role, _ROLES)
        return role

    def _assistant(self) -> int:
        message, path = self._message, self._path
        for key, hint in (
            ("audio", "Text only is served."),
            ("function_call", "Use 'tool_calls'."),
        ):
            if key in message:
                raise UnsupportedFeature(
                    f"Unsupported parameter: '{path}.{key}' is not supported. {hint}",
                    param=f"{path}.{key}",
                )
        for key in _DROPPED:
            message.pop(key, None)
        size = 0
        if "reasoning_content" in message:
            where = f"{path}.reasoning_content"
            size += utf8_bytes(as_string(message["reasoning_content"], where))
        if "refusal" in message:
            refusal = as_string(message.pop("refusal"), f"{path}.refusal")
            if message.get("content") is None:
                message["content"] = refusal
        size += self._tool_calls()
        if message.get("content") is None:
            if "tool_calls" not in message:
                raise InvalidField(
                    f"Invalid '{path}.content': an assistant message without 'tool_calls' needs "
                    "a string or an array of parts.",
                    code="invalid_type",
                    param=f"{path}.content",
                )
            message["content"] = None
            return size
        return size + self._content("assistant")

    def _content(self, role: str) -> int:
        """Bytes of the content's text; refusal parts become text parts."""
        content = self._message["content"]
        path = f"{self._path}.content"
        if isinstance(content, str):
            return utf8_bytes(content)
        if not isinstance(content, list):
            raise wrong_type(path, "a string or an array of parts", content)
        size = 0
        for index, part in enumerate(as_array(content, path, PARTS_MAX)):
            where = f"{path}[{index}]"
            value = _text_of(as_object(part, where), where, role)
            content[index] = {"type": "text", "text": value}
            size += utf8_bytes(value)
        return size

    def _tool_calls(self) -> int:
        """Bytes of names and arguments; the calls become what the next tool messages answer."""
        given = self._message.pop("tool_calls", None)
        path = f"{self._path}.tool_calls"
        if given is None or given == []:
            self._turn.open(self._index, [])
            return 0
        calls = [
            _call(as_object(call, f"{path}[{i}]"), f"{path}[{i}]")
            for i, call in enumerate(as_array(given, path, TOOL_CALLS_MAX))
        ]
        ids = [call_id for call_id, _, _ in calls]
        for i, call_id in enumerate(ids):
            if call_id in ids[:i]:
                raise InvalidField(
                    f"Invalid '{path}[{i}].id': the id of another call of the same message.",
                    param=f"{path}[{i}].id",
                )
        self._turn.open(self._index, ids)
        self._message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ]
        return sum(utf8_bytes(name) + utf8_bytes(arguments) for _, name, arguments in calls)


def _text_of(part: dict[str, object], path: str, role: str) -> str:
    if "type" not in part:
        raise missing(f"{path}.type")
    kind = as_string(part["type"], f"{path}.type")
    if kind not in _PART_TYPES[role]:
        raise not_supported_value(f"{path}.type", kind, _PART_TYPES[role])
    if kind in _MEDIA:
        raise UnsupportedFeature(
            f"Invalid '{path}.type': got '{kind}', but this model takes text only. "
            "Send 'text' parts.",
            code="unsupported_value",
            param=f"{path}.type",
        )
    only_keys(part, path, _TEXT_PART if kind == "text" else _REFUSAL_PART)
    if kind not in part:
        raise missing(f"{path}.{kind}")
    return as_string(part[kind], f"{path}.{kind}")


def _call(call: dict[str, object], path: str) -> tuple[str, str, str]:
    """Id, function name and arguments of one call of an earlier turn."""
    kind = as_string(call.get("type", "function"), f"{path}.type")
    if kind == "custom":
        raise UnsupportedFeature(
            f"Invalid '{path}.type': custom tools are not supported. Use 'function'.",
            code="unsupported_value",
            param=f"{path}.type",
        )
    if kind != "function":
        raise not_supported_value(f"{path}.type", kind, ("function",))
    only_keys(call, path, _CALL)
    for key in ("id", "function"):
        if key not in call:
            raise missing(f"{path}.{key}")
    function = as_object(call["function"], f"{path}.function")
    only_keys(function, f"{path}.function", _CALL_FUNCTION)
    for key in ("name", "arguments"):
        if key not in function:
            raise missing(f"{path}.function.{key}")
    return (
        _call_id(call["id"], f"{path}.id"),
        _call_id(function["name"], f"{path}.function.name"),
        _arguments(function["arguments"], f"{path}.function.arguments"),
    )


def _arguments(value: object, path: str) -> str:
    """Arguments as the engine can read them: a JSON object in a string; an empty one is `{}`."""
    arguments = as_string(value, path).strip()
    if not arguments:
        return "{}"
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict) or depth_of(parsed, ARGUMENTS_DEPTH_MAX) > ARGUMENTS_DEPTH_MAX:
        raise InvalidField(
            f"Invalid '{path}': expected a JSON object of at most {ARGUMENTS_DEPTH_MAX} levels, "
            "written as a string.",
            param=path,
        )
    return arguments
