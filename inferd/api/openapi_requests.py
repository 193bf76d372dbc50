"""The parts of request bodies that are more than one value, in JSON Schema, for the document."""

from __future__ import annotations

from typing import Any, Final

from inferd.api.fields import NAME_CHARS_MAX
from inferd.api.messages import CALL_ID_CHARS_MAX, MESSAGES_MAX, PARTS_MAX, TOOL_CALLS_MAX
from inferd.api.tools import TOOLS_MAX

Schema = dict[str, Any]


def closed(properties: Schema, *required: str) -> Schema:
    """An object with these keys and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


TEXT: Final[Schema] = {"type": "string"}
NAME: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": NAME_CHARS_MAX,
    "pattern": "^[a-zA-Z0-9_-]+$",
}
_CALL_ID: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": CALL_ID_CHARS_MAX}
_SCHEMA: Final[Schema] = {"type": "object", "description": "A JSON schema that can be enforced."}


def _parts(*kinds: Schema) -> Schema:
    return {
        "anyOf": [
            TEXT,
            {
                "type": "array",
                "items": kinds[0] if len(kinds) == 1 else {"anyOf": list(kinds)},
                "minItems": 1,
                "maxItems": PARTS_MAX,
            },
        ]
    }


_TEXT_PART: Final = closed(
    {"type": {"const": "text"}, "text": TEXT, "prompt_cache_breakpoint": {}}, "type", "text"
)
_REFUSAL_PART: Final = closed(
    {"type": {"const": "refusal"}, "refusal": TEXT, "prompt_cache_breakpoint": {}},
    "type",
    "refusal",
)
_TOOL_CALL: Final = closed(
    {
        "id": _CALL_ID,
        "type": {"const": "function"},
        "index": {},
        "function": closed(
            {"name": _CALL_ID, "arguments": TEXT, "parsed_arguments": {}}, "name", "arguments"
        ),
    },
    "id",
    "function",
)
_FUNCTION: Final[Schema] = {
    "name": NAME,
    "description": nullable(TEXT),
    "parameters": nullable(_SCHEMA),
    "strict": nullable({"type": "boolean"}),
}
_JSON_SCHEMA: Final[Schema] = {
    "name": NAME,
    "schema": _SCHEMA,
    "description": nullable(TEXT),
    "strict": nullable({"type": "boolean"}),
}
_PLAIN_FORMATS: Final = closed({"type": {"enum": ["text", "json_object"]}}, "type")
_MODES: Final[Schema] = {"type": "string", "enum": ["none", "auto", "required"]}
_NAMED: Final = closed({"type": {"const": "function"}, "function": closed({"name": NAME}, "name")})
_FLAT_NAMED: Final = closed({"type": {"const": "function"}, "name": NAME}, "type", "name")


def _allowed(named: Schema) -> Schema:
    tools = {"type": "array", "items": named, "minItems": 1, "maxItems": TOOLS_MAX}
    return {"mode": {"type": "string", "enum": ["auto", "required"]}, "tools": tools}


_MESSAGE: Final[Schema] = {
    "anyOf": [
        closed(
            {
                "role": {"enum": ["system", "developer", "user"]},
                "content": _parts(_TEXT_PART),
                "name": nullable(TEXT),
            },
            "role",
            "content",
        ),
        closed(
            {
                "role": {"const": "assistant"},
                "content": nullable(_parts(_TEXT_PART, _REFUSAL_PART)),
                "name": nullable(TEXT),
                "refusal": nullable(TEXT),
                "reasoning_content": nullable(TEXT),
                "tool_calls": nullable(
                    {"type": "array", "items": _TOOL_CALL, "maxItems": TOOL_CALLS_MAX}
                ),
                "annotations": {},
                "parsed": {},
                "audio": {"type": "null"},
                "function_call": {"type": "null"},
            },
            "role",
        ),
        closed(
            {
                "role": {"const": "tool"},
                "content": _parts(_TEXT_PART),
                "tool_call_id": _CALL_ID,
                "name": nullable(TEXT),
            },
            "role",
            "content",
            "tool_call_id",
        ),
    ]
}
_INPUT_PARTS: Final = (
    closed(
        {"type": {"const": "input_text"}, "text": TEXT, "prompt_cache_breakpoint": {}},
        "type",
        "text",
    ),
    closed(
        {"type": {"const": "output_text"}, "text": TEXT, "annotations": {}, "logprobs": {}},
        "type",
        "text",
    ),
    closed({"type": {"const": "refusal"}, "refusal": TEXT}, "type", "refusal"),
)
_LABELS: Final[Schema] = {"id": {}, "status": {}}
_ITEM: Final[Schema] = {
    "anyOf": [
        closed(
            {
                "type": {"const": "message"},
                "role": {"enum": ["user", "assistant", "system", "developer"]},
                "content": _parts(*_INPUT_PARTS),
                "phase": {},
                **_LABELS,
            },
            "role",
            "content",
        ),
        closed(
            {
                "type": {"const": "function_call"},
                "call_id": _CALL_ID,
                "name": _CALL_ID,
                "arguments": TEXT,
                **_LABELS,
            },
            "type",
            "call_id",
            "name",
            "arguments",
        ),
        closed(
            {
                "type": {"const": "function_call_output"},
                "call_id": _CALL_ID,
                "output": _parts(*_INPUT_PARTS),
                **_LABELS,
            },
            "type",
            "call_id",
            "output",
        ),
        {
            "type": "object",
            "properties": {"type": {"const": "reasoning"}},
            "required": ["type"],
            "description": "Taken, and not shown to the model.",
        },
    ]
}

REQUEST_SCHEMAS: Final[dict[str, Schema]] = {
    "Messages": {"type": "array", "items": _MESSAGE, "minItems": 1, "maxItems": MESSAGES_MAX},
    "ResponseFormat": {
        "anyOf": [
            _PLAIN_FORMATS,
            closed(
                {
                    "type": {"const": "json_schema"},
                    "json_schema": closed(_JSON_SCHEMA, "name", "schema"),
                },
                "type",
                "json_schema",
            ),
        ]
    },
    "Tool": closed(
        {"type": {"const": "function"}, "function": closed(_FUNCTION, "name")}, "type", "function"
    ),
    "ToolChoice": {
        "anyOf": [
            _MODES,
            {**_NAMED, "required": ["type", "function"]},
            closed(
                {
                    "type": {"const": "allowed_tools"},
                    "allowed_tools": closed(_allowed(_NAMED), "mode", "tools"),
                },
                "type",
                "allowed_tools",
            ),
        ]
    },
    "ResponseInput": {
        "anyOf": [
            TEXT,
            {"type": "array", "items": _ITEM, "minItems": 1, "maxItems": MESSAGES_MAX},
        ]
    },
    "ResponseTool": closed({"type": {"const": "function"}, **_FUNCTION}, "type", "name"),
    "ResponseToolChoice": {
        "anyOf": [
            _MODES,
            _FLAT_NAMED,
            closed(
                {"type": {"const": "allowed_tools"}, **_allowed(_FLAT_NAMED)},
                "type",
                "mode",
                "tools",
            ),
        ]
    },
    "ResponseText": closed(
        {
            "format": nullable(
                {
                    "anyOf": [
                        _PLAIN_FORMATS,
                        closed(
                            {"type": {"const": "json_schema"}, **_JSON_SCHEMA},
                            "type",
                            "name",
                            "schema",
                        ),
                    ]
                }
            ),
            "verbosity": nullable({"const": "medium"}),
        }
    ),
}
"""Referred to by the rules of parameters, by name."""
