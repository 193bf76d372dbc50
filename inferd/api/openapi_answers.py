"""What inferd answers, in JSON Schema, for the document. Closed where we write every key."""

from __future__ import annotations

from typing import Any, Final

from inferd.api.openapi_requests import TEXT, closed, nullable
from inferd.inference import Endpoint

Schema = dict[str, Any]

COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_ID: Final[Schema] = {"type": "string", "minLength": 1}


def _all(**properties: Schema) -> Schema:
    """Closed, with every key required."""
    return closed(properties, *properties)


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


USAGE: Final = _all(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=_all(cached_tokens=COUNT, audio_tokens=COUNT, cache_write_tokens=COUNT),
    completion_tokens_details=_all(
        reasoning_tokens=COUNT,
        audio_tokens=COUNT,
        accepted_prediction_tokens=COUNT,
        rejected_prediction_tokens=COUNT,
    ),
)
ERROR: Final[Schema] = _all(
    error={
        "type": "object",
        "properties": {
            "message": TEXT,
            "type": TEXT,
            "param": nullable(TEXT),
            "code": nullable(TEXT),
        },
        "required": ["message", "type", "param", "code"],
    }
)
_FINISH: Final[Schema] = {"enum": ["stop", "length", "tool_calls", "content_filter"]}
_TOOL_CALL: Final[Schema] = {
    "type": "object",
    "properties": {
        "id": _ID,
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": TEXT, "arguments": TEXT},
            "required": ["name", "arguments"],
        },
    },
    "required": ["id", "type", "function"],
}
_CHAT: Final = closed(
    {
        "id": _ID,
        "object": {"const": "chat.completion"},
        "created": COUNT,
        "model": TEXT,
        "choices": _list(
            _all(
                index=COUNT,
                message=closed(
                    {
                        "role": {"const": "assistant"},
                        "content": nullable(TEXT),
                        "refusal": nullable(TEXT),
                        "annotations": {"type": "array"},
                        "tool_calls": _list(_TOOL_CALL),
                        "reasoning_content": TEXT,
                    },
                    *("role", "content", "refusal", "annotations"),
                ),
                logprobs=nullable({"type": "object"}),
                finish_reason=_FINISH,
            )
        ),
        "usage": USAGE,
        "service_tier": {"enum": ["default", "flex", "priority"]},
        "system_fingerprint": nullable(TEXT),
        "metadata": {"type": "object", "additionalProperties": TEXT},
    },
    *("id", "object", "created", "model", "choices", "usage", "service_tier"),
)
_COMPLETION: Final = _all(
    id=_ID,
    object={"const": "text_completion"},
    created=COUNT,
    model=TEXT,
    choices=_list(
        _all(
            index=COUNT,
            text=TEXT,
            logprobs=nullable({"type": "object"}),
            finish_reason={"enum": ["stop", "length", "content_filter"]},
        )
    ),
    usage=USAGE,
    system_fingerprint=nullable(TEXT),
)
_EMBEDDINGS: Final = _all(
    object={"const": "list"},
    data=_list(
        _all(
            object={"const": "embedding"},
            index=COUNT,
            embedding={"anyOf": [_list({"type": "number"}), TEXT]},
        )
    ),
    model=TEXT,
    usage=_all(prompt_tokens=COUNT, total_tokens=COUNT),
)
_RESPONSE: Final[Schema] = {
    "type": "object",
    "properties": {
        "id": _ID,
        "object": {"const": "response"},
        "created_at": COUNT,
        "status": {"enum": ["completed", "incomplete", "in_progress", "failed"]},
        "error": nullable({"type": "object"}),
        "incomplete_details": nullable(
            _all(reason={"enum": ["max_output_tokens", "content_filter"]})
        ),
        "model": TEXT,
        "output": _list({"type": "object", "required": ["id", "type", "status"]}),
        "store": {"const": False},
        "usage": nullable(
            _all(
                input_tokens=COUNT,
                input_tokens_details=_all(cached_tokens=COUNT, cache_write_tokens=COUNT),
                output_tokens=COUNT,
                output_tokens_details=_all(reasoning_tokens=COUNT),
                total_tokens=COUNT,
            )
        ),
    },
    "required": ["id", "object", "created_at", "status", "model", "output", "usage", "error"],
}
_TOKENS: Final = _all(
    object={"const": "tokens"},
    model=TEXT,
    tokens={"type": "array"},
    count={"anyOf": [COUNT, _list(COUNT)]},
)
MODEL: Final = _all(
    id=_ID,
    object={"const": "model"},
    created=COUNT,
    owned_by=TEXT,
    parent=nullable(TEXT),
    kind={"enum": ["chat", "embedding"]},
    version=TEXT,
    versions=_list(TEXT),
    aliases=_list(TEXT),
    context_tokens_max=COUNT,
    output_tokens_max=COUNT,
    state={"enum": ["ready", "loading", "draining", "unavailable"]},
)
MODELS: Final = _all(object={"const": "list"}, data=_list(MODEL))
HEALTH: Final = _all(status=TEXT)

ANSWERS: Final[dict[Endpoint, tuple[str, Schema]]] = {
    Endpoint.CHAT: ("ChatCompletion", _CHAT),
    Endpoint.COMPLETIONS: ("Completion", _COMPLETION),
    Endpoint.EMBEDDINGS: ("Embeddings", _EMBEDDINGS),
    Endpoint.RESPONSES: ("Response", _RESPONSE),
    Endpoint.INPUT_TOKENS: (
        "InputTokens",
        _all(object={"const": "response.input_tokens"}, input_tokens=COUNT),
    ),
    Endpoint.TOKENIZE: ("Tokens", _TOKENS),
}
