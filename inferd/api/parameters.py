"""The parameters of a chat completion: which are honoured, which accepted, which refused.

Pure tables of rules. `HONOURED` go to the engine under their own name; `GATEWAY` are inferd's to
act on; `ACCEPTED` are checked and have no effect; `REFUSED` are known and not served. What stands
in no table is unknown. `docs/api.md` shows the same tables; a test compares them.
"""

from __future__ import annotations

import re
from typing import Final

from inferd.api.fields import (
    Rule,
    as_array,
    as_object,
    as_string,
    boolean,
    integer,
    member,
    missing,
    one_of,
    only_keys,
    string,
    wrong_type,
)
from inferd.api.messages import check_messages
from inferd.api.parsed import Tables
from inferd.api.response_format import check_response_format
from inferd.api.sampling import (
    ENGINE_SAMPLING,
    LABEL_CHARS_MAX,
    SAMPLING,
    WHO_ASKS,
    pairs,
    raw_count,
    store,
    stream_options,
    unsupported_value,
)
from inferd.api.tools import TOOLS_MAX, check_choice, check_tools
from inferd.errors import UnsupportedFeature

TOP_LOGPROBS_MAX: Final = 20
TEMPLATE_VALUES_MAX: Final = 16
TEMPLATE_VALUE_CHARS_MAX: Final = 512

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Arguments of the tokenizer's own template call. A client that sets them would replace the
# template, what it renders, or what comes back.
_TEMPLATE_RESERVED: Final = frozenset(
    {
        "add_generation_prompt",
        "add_special_tokens",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "processor_kwargs",
        "reasoning_effort",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


def _chat_template_kwargs(value: object, path: str) -> dict[str, object]:
    given = pairs(value, path, TEMPLATE_VALUES_MAX)
    for key, item in given.items():
        where = member(path, key)
        if key in _TEMPLATE_RESERVED or not _IDENTIFIER.fullmatch(key):
            hint = " Use the parameter 'reasoning_effort'." if key == "reasoning_effort" else ""
            raise UnsupportedFeature(
                f"Unsupported parameter: '{where}' may not be set by a request.{hint}", param=where
            )
        if isinstance(item, dict | list):
            raise wrong_type(where, "a string, a number, a boolean or null", item)
        if isinstance(item, str):
            string(TEMPLATE_VALUE_CHARS_MAX)(item, where)
    return given


def _verbosity(value: object, path: str) -> None:
    level = one_of("low", "medium", "high")(value, path)
    if level != "medium":
        raise unsupported_value(path, level, "Only 'medium' is supported.")


def _modalities(value: object, path: str) -> None:
    check = one_of("text", "audio")
    for index, item in enumerate(as_array(value, path, 2)):
        if check(item, f"{path}[{index}]") == "audio":
            raise unsupported_value(f"{path}[{index}]", "audio", "Only 'text' is supported.")


def _prediction(value: object, path: str) -> None:
    given = as_object(value, path)
    only_keys(given, path, frozenset({"type", "content"}))
    for key in ("type", "content"):
        if key not in given:
            raise missing(f"{path}.{key}")
    one_of("content")(given["type"], f"{path}.type")
    if not isinstance(given["content"], str | list):
        raise wrong_type(f"{path}.content", "a string or an array of parts", given["content"])


def _prompt_cache_options(value: object, path: str) -> None:
    given = as_object(value, path)
    only_keys(given, path, frozenset({"mode", "ttl"}))
    if given.get("mode") is not None:
        one_of("implicit", "explicit")(given["mode"], f"{path}.mode")
    if given.get("ttl") is not None:
        as_string(given["ttl"], f"{path}.ttl")


chat_template_kwargs: Final = Rule(
    _chat_template_kwargs,
    {
        "type": "object",
        "maxProperties": TEMPLATE_VALUES_MAX,
        "additionalProperties": {
            "type": ["string", "number", "boolean", "null"],
            "maxLength": TEMPLATE_VALUE_CHARS_MAX,
        },
    },
)
reasoning_effort: Final = one_of("none", "minimal", "low", "medium", "high", "xhigh", "max")
prompt_cache_options: Final = Rule(
    _prompt_cache_options,
    {
        "type": "object",
        "properties": {
            "mode": {"type": ["string", "null"], "enum": ["implicit", "explicit", None]},
            "ttl": {"type": ["string", "null"]},
        },
        "additionalProperties": False,
    },
)

HONOURED: Final[dict[str, Rule[object]]] = {
    **SAMPLING,
    "logprobs": boolean,
    "top_logprobs": integer(0, TOP_LOGPROBS_MAX),
    "response_format": Rule(check_response_format, {"$ref": "#/components/schemas/ResponseFormat"}),
    **ENGINE_SAMPLING,
    "chat_template_kwargs": chat_template_kwargs,
    "separate_reasoning": boolean,
    "continue_final_message": boolean,
}

GATEWAY: Final[dict[str, Rule[object]]] = {
    "messages": Rule(
        lambda value, _path: check_messages(value), {"$ref": "#/components/schemas/Messages"}
    ),
    "stream": boolean,
    "stream_options": stream_options,
    "max_completion_tokens": raw_count,
    "max_tokens": raw_count,
    "n": raw_count,
    "tools": Rule(
        lambda value, _path: check_tools(value),
        {"type": "array", "items": {"$ref": "#/components/schemas/Tool"}, "maxItems": TOOLS_MAX},
    ),
    "tool_choice": Rule(check_choice, {"$ref": "#/components/schemas/ToolChoice"}),
    "parallel_tool_calls": boolean,
    "reasoning_effort": reasoning_effort,
    "prompt_cache_key": string(LABEL_CHARS_MAX),
    **WHO_ASKS,
}

ACCEPTED: Final[dict[str, Rule[object]]] = {
    "verbosity": Rule(_verbosity, {"type": "string", "const": "medium"}),
    "prompt_cache_options": prompt_cache_options,
    "prompt_cache_retention": one_of("in_memory", "in-memory", "24h"),
    "store": store,
    "modalities": Rule(
        _modalities,
        {"type": "array", "items": {"const": "text"}, "minItems": 1, "maxItems": 2},
    ),
    "prediction": Rule(
        _prediction,
        {
            "type": "object",
            "properties": {
                "type": {"const": "content"},
                "content": {"type": ["string", "array"]},
            },
            "required": ["type", "content"],
            "additionalProperties": False,
        },
    ),
}

REFUSED: Final[dict[str, str]] = {
    "functions": "Use 'tools'.",
    "function_call": "Use 'tool_choice'.",
    "audio": "Text only is served.",
    "moderation": "Answers are not moderated here.",
    "web_search_options": "The model has no access to the web.",
}

TABLES: Final = Tables(HONOURED, GATEWAY, ACCEPTED, REFUSED)
