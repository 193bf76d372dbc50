"""Parameters that several endpoints share: how the engine samples, and who asks.

Pure rules; `parameters.py` and its siblings put them into each endpoint's tables.
"""

from __future__ import annotations

import re
from typing import Final

from inferd.api.fields import (
    INT64_MAX,
    INT64_MIN,
    Rule,
    as_array,
    as_object,
    boolean,
    integer,
    member,
    number,
    one_of,
    only_keys,
    shown,
    string,
    text,
    wrong_type,
)
from inferd.errors import InvalidField, UnsupportedFeature

STOPS_MAX: Final = 4
STOP_CHARS_MAX: Final = 1_024
STOP_TOKENS_MAX: Final = 64
LOGIT_BIASES_MAX: Final = 1_024
TOKEN_ID_MAX: Final = 2**31 - 1
TOP_P_MIN: Final = 1e-6
"""The engine refuses 0, which means the same: the likeliest token only."""
GRAMMAR_CHARS_MAX: Final = 16_384
LABEL_CHARS_MAX: Final = 1_024
SAFETY_IDENTIFIER_CHARS_MAX: Final = 128
METADATA_PAIRS_MAX: Final = 16
METADATA_KEY_CHARS_MAX: Final = 64
METADATA_VALUE_CHARS_MAX: Final = 512

_DIGITS: Final = re.compile(r"[0-9]{1,10}")


def _top_p(value: object, path: str) -> float:
    return max(number(0, 1)(value, path), TOP_P_MIN)


def _stop(value: object, path: str) -> str | list[str]:
    check = text(STOP_CHARS_MAX)
    if isinstance(value, str):
        return check(value, path)
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of strings", value)
    return [check(v, f"{path}[{i}]") for i, v in enumerate(as_array(value, path, STOPS_MAX))]


def _stop_token_ids(value: object, path: str) -> list[int]:
    check = integer(0, TOKEN_ID_MAX)
    items = as_array(value, path, STOP_TOKENS_MAX)
    return [check(item, f"{path}[{i}]") for i, item in enumerate(items)]


def _logit_bias(value: object, path: str) -> dict[str, float]:
    check = number(-100, 100)
    given = pairs(value, path, LOGIT_BIASES_MAX)
    for key in given:
        if not _DIGITS.fullmatch(key) or int(key) > TOKEN_ID_MAX:
            raise InvalidField(
                f"Invalid '{path}': key '{shown(key)}' is not a token id. "
                "Expected a whole number written as a string.",
                param=path,
            )
    return {key: check(bias, member(path, key)) for key, bias in given.items()}


def pairs(value: object, path: str, pairs_max: int) -> dict[str, object]:
    given = as_object(value, path)
    if len(given) > pairs_max:
        raise InvalidField(
            f"Invalid '{path}': too many properties. Expected an object with maximum {pairs_max} "
            f"properties, but got an object with {len(given)} properties instead.",
            code="object_above_max_properties",
            param=path,
        )
    return given


def _top_k(value: object, path: str) -> int:
    top_k = integer(-1, TOKEN_ID_MAX)(value, path)
    if top_k == 0:
        raise InvalidField(f"Invalid '{path}': expected -1 (off) or at least 1.", param=path)
    return top_k


def _repetition_penalty(value: object, path: str) -> float:
    penalty = number(0, 2)(value, path)
    if penalty == 0:
        raise InvalidField(
            f"Invalid '{path}': decimal below minimum value. Expected a value > 0, "
            "but got 0 instead.",
            code="decimal_below_min_value",
            param=path,
        )
    return penalty


def _stream_options(value: object, path: str) -> bool:
    """Whether usage was asked for."""
    given = as_object(value, path)
    only_keys(given, path, frozenset({"include_usage", "include_obfuscation"}))
    for key, item in given.items():
        if item is not None:
            boolean(item, f"{path}.{key}")
    return given.get("include_usage") is True


def _metadata(value: object, path: str) -> dict[str, str]:
    given = pairs(value, path, METADATA_PAIRS_MAX)
    check = string(METADATA_VALUE_CHARS_MAX)
    for key in given:
        if len(key) > METADATA_KEY_CHARS_MAX:
            raise InvalidField(
                f"Invalid '{path}': key '{shown(key)}' is too long. Expected keys of at most "
                f"{METADATA_KEY_CHARS_MAX} characters.",
                code="string_above_max_length",
                param=path,
            )
    return {key: check(item, member(path, key)) for key, item in given.items()}


def _store(value: object, path: str) -> None:
    if boolean(value, path):
        raise unsupported_value(path, "true", "Answers are not stored: send false or nothing.")


def unsupported_value(path: str, value: str, hint: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"Unsupported value: '{path}' does not support '{value}'. {hint}",
        code="unsupported_value",
        param=path,
    )


def _raw(value: object, _path: str) -> object:
    """Checked later, against the model's limits."""
    return value


token_id: Final = integer(0, TOKEN_ID_MAX)
raw_count: Final = Rule(_raw, {"type": "integer", "minimum": 1})
"""Checked later, against the model's limits."""
stream_options: Final = Rule(
    _stream_options,
    {
        "type": "object",
        "properties": {
            "include_usage": {"type": ["boolean", "null"]},
            "include_obfuscation": {"type": ["boolean", "null"]},
        },
        "additionalProperties": False,
    },
)
metadata: Final = Rule(
    _metadata,
    {
        "type": "object",
        "maxProperties": METADATA_PAIRS_MAX,
        "propertyNames": {"maxLength": METADATA_KEY_CHARS_MAX},
        "additionalProperties": {"type": "string", "maxLength": METADATA_VALUE_CHARS_MAX},
    },
)
store: Final = Rule(_store, {"type": "boolean", "const": False})
top_p: Final = Rule(_top_p, {"type": "number", "minimum": 0, "maximum": 1})
user: Final = string(LABEL_CHARS_MAX)
safety_identifier: Final = string(SAFETY_IDENTIFIER_CHARS_MAX)
priority: Final = one_of("interactive", "batch")
service_tier: Final = one_of("auto", "default", "flex", "scale", "priority", "fast")

SAMPLING: Final[dict[str, Rule[object]]] = {
    "temperature": number(0, 2),
    "top_p": top_p,
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "logit_bias": Rule(
        _logit_bias,
        {
            "type": "object",
            "maxProperties": LOGIT_BIASES_MAX,
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        },
    ),
    "stop": Rule(
        _stop,
        {
            "anyOf": [
                text(STOP_CHARS_MAX).schema,
                {
                    "type": "array",
                    "items": text(STOP_CHARS_MAX).schema,
                    "minItems": 1,
                    "maxItems": STOPS_MAX,
                },
            ]
        },
    ),
    "seed": integer(INT64_MIN, INT64_MAX),
}
"""The public API's own."""

ENGINE_SAMPLING: Final[dict[str, Rule[object]]] = {
    "top_k": Rule(
        _top_k, {"type": "integer", "minimum": -1, "maximum": TOKEN_ID_MAX, "not": {"const": 0}}
    ),
    "min_p": number(0, 1),
    "repetition_penalty": Rule(
        _repetition_penalty, {"type": "number", "exclusiveMinimum": 0, "maximum": 2}
    ),
    "regex": text(GRAMMAR_CHARS_MAX),
    "ebnf": text(GRAMMAR_CHARS_MAX),
    "stop_token_ids": Rule(
        _stop_token_ids,
        {
            "type": "array",
            "items": token_id.schema,
            "minItems": 1,
            "maxItems": STOP_TOKENS_MAX,
        },
    ),
    "ignore_eos": boolean,
    "min_tokens": token_id,
}
"""The engine's own, sent through the SDK's `extra_body`."""

WHO_ASKS: Final[dict[str, Rule[object]]] = {
    "metadata": metadata,
    "priority": priority,
    "service_tier": service_tier,
    "user": user,
    "safety_identifier": safety_identifier,
}
