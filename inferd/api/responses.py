"""A response's body bytes -> `ParsedRequest`: the stateless part of the Responses API, on chat.

Pure. The body is turned into a chat completion, which is checked as any other; errors are said of
the parameters that the client sent. Nothing is stored: what needs an earlier response is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from inferd.api.fields import (
    Rule,
    as_array,
    as_object,
    boolean,
    integer,
    missing,
    one_of,
    only_keys,
    string,
)
from inferd.api.parameters import (
    HONOURED,
    TOP_LOGPROBS_MAX,
    prompt_cache_options,
    reasoning_effort,
)
from inferd.api.parameters import TABLES as CHAT_TABLES
from inferd.api.parsed import LimitsOf, ParsedRequest, Tables, read_envelope
from inferd.api.responses_input import (
    TEXT_CHARS_MAX,
    Conversation,
    check_input,
    flat_choice,
    flat_format,
    flat_tools,
)
from inferd.api.sampling import LABEL_CHARS_MAX, WHO_ASKS, raw_count, unsupported_value
from inferd.api.schema import join_chat
from inferd.api.tools import TOOLS_MAX
from inferd.errors import RequestError
from inferd.inference import Priority

_INCLUDES: Final = one_of("message.output_text.logprobs", "reasoning.encrypted_content")


def _include(value: object, path: str) -> list[str]:
    if value == []:
        return []
    return [_INCLUDES(item, f"{path}[{i}]") for i, item in enumerate(as_array(value, path, 16))]


def _reasoning(value: object, path: str) -> dict[str, object]:
    given = as_object(value, path)
    only_keys(given, path, frozenset({"effort", "summary", "generate_summary"}))
    for key in ("summary", "generate_summary"):
        if given.get(key) is not None:
            one_of("auto", "concise", "detailed")(given[key], f"{path}.{key}")
    if given.get("effort") is not None:
        reasoning_effort(given["effort"], f"{path}.effort")
    return given


def _background(value: object, path: str) -> None:
    if boolean(value, path):
        raise unsupported_value(path, "true", "Responses are answered at once or streamed.")


def _stream_options(value: object, path: str) -> None:
    given = as_object(value, path)
    only_keys(given, path, frozenset({"include_obfuscation"}))
    if given.get("include_obfuscation") is not None:
        boolean(given["include_obfuscation"], f"{path}.include_obfuscation")


_REASONING_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "effort": {"type": ["string", "null"], "enum": [*reasoning_effort.schema["enum"], None]},  # type: ignore[misc]
        "summary": {"type": ["string", "null"], "enum": ["auto", "concise", "detailed", None]},
    },
    "additionalProperties": False,
}
TABLES: Final = Tables(
    honoured={name: HONOURED[name] for name in ("temperature", "top_p")},
    gateway={
        "input": Rule(check_input, {"$ref": "#/components/schemas/ResponseInput"}),
        "instructions": string(TEXT_CHARS_MAX),
        "max_output_tokens": raw_count,
        "stream": boolean,
        "tools": Rule(
            flat_tools,
            {
                "type": "array",
                "items": {"$ref": "#/components/schemas/ResponseTool"},
                "maxItems": TOOLS_MAX,
            },
        ),
        "tool_choice": Rule(flat_choice, {"$ref": "#/components/schemas/ResponseToolChoice"}),
        "parallel_tool_calls": boolean,
        "text": Rule(flat_format, {"$ref": "#/components/schemas/ResponseText"}),
        "reasoning": Rule(_reasoning, _REASONING_SCHEMA),
        "top_logprobs": integer(0, TOP_LOGPROBS_MAX),
        "include": Rule(_include, {"type": "array", "items": _INCLUDES.schema, "maxItems": 16}),
        "prompt_cache_key": string(LABEL_CHARS_MAX),
        **WHO_ASKS,
    },
    accepted={
        "store": boolean,
        "background": Rule(_background, {"type": "boolean", "const": False}),
        "truncation": one_of("disabled"),
        "stream_options": Rule(
            _stream_options,
            {
                "type": "object",
                "properties": {"include_obfuscation": {"type": ["boolean", "null"]}},
                "additionalProperties": False,
            },
        ),
        "prompt_cache_options": prompt_cache_options,
        "prompt_cache_retention": one_of("in_memory", "in-memory", "24h"),
    },
    refused={
        "previous_response_id": "Nothing is stored: send the whole conversation in 'input'.",
        "conversation": "Nothing is stored: send the whole conversation in 'input'.",
        "prompt": "Send 'instructions' and 'input'.",
        "max_tool_calls": "Only functions of your own are called.",
        "context_management": "Send what fits the model's context.",
        "moderation": "Answers are not moderated here.",
    },
)
_SAME_IN_CHAT: Final[tuple[str, ...]] = (
    "stream",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "prompt_cache_key",
    "metadata",
    "priority",
    "service_tier",
    "user",
    "safety_identifier",
)


def parse_response(raw: bytes, resolve: LimitsOf, priority_max: Priority) -> ParsedRequest:
    """Parse and validate a body; see `parse_chat`.

    Raises:
        RequestError: naming the parameter and what is allowed.
    """
    envelope, model, limits = read_envelope(raw, resolve)
    honoured, ours = TABLES.check(envelope)
    if "input" not in ours:
        raise missing("input")
    conversation: Conversation = ours["input"]
    if "instructions" in ours:
        system = {"role": "system", "content": ours["instructions"]}
        conversation.messages.insert(0, system)
        conversation.origins.insert(0, 0)
    chat = {**honoured, **_chat_parameters(ours), "messages": conversation.messages}
    try:
        body, chat_ours = CHAT_TABLES.check(chat)
        body["messages"] = chat["messages"]
        parsed = join_chat(model, limits, body, chat_ours, priority_max)
    except RequestError as error:
        raise _of_a_response(error, conversation.origins) from None
    return replace(parsed, include_usage=True, echo=_echo(envelope, limits.sampling))


def _chat_parameters(ours: dict[str, Any]) -> dict[str, Any]:
    chat: dict[str, Any] = {name: ours[name] for name in _SAME_IN_CHAT if name in ours}
    if "max_output_tokens" in ours:
        chat["max_completion_tokens"] = ours["max_output_tokens"]
    if ours.get("text") is not None:
        chat["response_format"] = ours["text"]
    effort = ours.get("reasoning", {}).get("effort")
    if effort is not None:
        chat["reasoning_effort"] = effort
    if "top_logprobs" in ours or "message.output_text.logprobs" in ours.get("include", ()):
        chat["logprobs"] = True
        chat["top_logprobs"] = ours.get("top_logprobs", 0)
    return chat


_RENAMED: Final = (
    (re.compile(r"tools\[(\d+)\]\.function"), r"tools[\1]"),
    (re.compile(r"tool_choice\.(?:function|allowed_tools)\b"), "tool_choice"),
    (re.compile(r"response_format(?:\.json_schema)?"), "text.format"),
    (re.compile(r"max_completion_tokens|max_tokens"), "max_output_tokens"),
    (re.compile(r"reasoning_effort"), "reasoning.effort"),
)
_MESSAGE: Final = re.compile(r"messages\.?\[(\d+)\]")


def _of_a_response(error: RequestError, origins: list[int]) -> RequestError:
    """The same error, said of the parameters that the client sent."""

    def renamed(text: str) -> str:
        text = _MESSAGE.sub(lambda found: f"input[{origins[int(found[1])]}]", text)
        text = text.replace("'messages'", "'input'")
        for pattern, name in _RENAMED:
            text = pattern.sub(name, text)
        return text

    error.message = renamed(error.message)
    if error.param is not None:
        error.param = "input" if error.param == "messages" else renamed(error.param)
    return error


def _echo(envelope: dict[str, Any], sampling: Mapping[str, float]) -> dict[str, Any]:
    """What the answer repeats: parameters as they were sent, or with their defaults."""

    def given(name: str, default: object = None) -> Any:  # noqa: ANN401 (whatever was sent)
        value = envelope.get(name)
        return default if value is None else value

    tools = given("tools", [])
    return {
        "background": False,
        "instructions": given("instructions"),
        "max_output_tokens": given("max_output_tokens"),
        "max_tool_calls": None,
        "parallel_tool_calls": given("parallel_tool_calls", default=True),
        "previous_response_id": None,
        "prompt_cache_key": given("prompt_cache_key"),
        "reasoning": given("reasoning", {"effort": None, "summary": None}),
        "safety_identifier": given("safety_identifier"),
        "store": False,
        "temperature": given("temperature", sampling.get("temperature", 1.0)),
        "text": given("text") or {"format": {"type": "text"}},
        "tool_choice": given("tool_choice", "auto" if tools else "none"),
        "tools": tools,
        "top_logprobs": given("top_logprobs", 0),
        "top_p": given("top_p", sampling.get("top_p", 1.0)),
        "truncation": "disabled",
        "user": given("user"),
    }
