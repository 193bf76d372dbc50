"""The parameters of a chat completion: which are honoured, which accepted, which refused.

Pure tables of checks. `HONOURED` go to the engine under their own name; `GATEWAY` are inferd's to
act on; `ACCEPTED` are checked and have no effect; `REFUSED` are known and not served. What stands
in no table is unknown. `docs/api.md` shows the same tables; a test compares them.
"""

from __future__ import annotations

import re
from typing import Final

from inferd.api.fields import (
    INT64_MAX,
    INT64_MIN,
    Check,
    as_array,
    as_object,
    as_string,
    boolean,
    integer,
    member,
    missing,
    number,
    one_of,
    only_keys,
    shown,
    string,
    text,
    wrong_type,
)
from inferd.api.messages import check_messages
from inferd.api.response_format import check_response_format
from inferd.api.tools import check_choice, check_tools
from inferd.errors import InvalidField, UnsupportedFeature

STOPS_MAX: Final = 4
STOP_CHARS_MAX: Final = 1_024
STOP_TOKENS_MAX: Final = 64
LOGIT_BIASES_MAX: Final = 1_024
TOKEN_ID_MAX: Final = 2**31 - 1
TOP_LOGPROBS_MAX: Final = 20
TOP_P_MIN: Final = 1e-6
"""The engine refuses 0, which means the same: the likeliest token only."""
GRAMMAR_CHARS_MAX: Final = 16_384
LABEL_CHARS_MAX: Final = 1_024
SAFETY_IDENTIFIER_CHARS_MAX: Final = 128
METADATA_PAIRS_MAX: Final = 16
METADATA_KEY_CHARS_MAX: Final = 64
METADATA_VALUE_CHARS_MAX: Final = 512
TEMPLATE_VALUES_MAX: Final = 16
TEMPLATE_VALUE_CHARS_MAX: Final = 512

_DIGITS: Final = re.compile(r"[0-9]{1,10}")
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
    given = _pairs(value, path, LOGIT_BIASES_MAX)
    for key in given:
        if not _DIGITS.fullmatch(key) or int(key) > TOKEN_ID_MAX:
            raise InvalidField(
                f"Invalid '{path}': key '{shown(key)}' is not a token id. "
                "Expected a whole number written as a string.",
                param=path,
            )
    return {key: check(bias, member(path, key)) for key, bias in given.items()}


def _pairs(value: object, path: str, pairs_max: int) -> dict[str, object]:
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


def _chat_template_kwargs(value: object, path: str) -> dict[str, object]:
    given = _pairs(value, path, TEMPLATE_VALUES_MAX)
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


def _stream_options(value: object, path: str) -> bool:
    """Whether usage was asked for."""
    given = as_object(value, path)
    only_keys(given, path, frozenset({"include_usage", "include_obfuscation"}))
    for key, item in given.items():
        if item is not None:
            boolean(item, f"{path}.{key}")
    return given.get("include_usage") is True


def _metadata(value: object, path: str) -> dict[str, str]:
    given = _pairs(value, path, METADATA_PAIRS_MAX)
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


def _verbosity(value: object, path: str) -> None:
    level = one_of("low", "medium", "high")(value, path)
    if level != "medium":
        raise _unsupported_value(path, level, "Only 'medium' is supported.")


def _store(value: object, path: str) -> None:
    if boolean(value, path):
        raise _unsupported_value(path, "true", "Completions are not stored: send false or nothing.")


def _modalities(value: object, path: str) -> None:
    check = one_of("text", "audio")
    for index, item in enumerate(as_array(value, path, 2)):
        if check(item, f"{path}[{index}]") == "audio":
            raise _unsupported_value(f"{path}[{index}]", "audio", "Only 'text' is supported.")


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


def _unsupported_value(path: str, value: str, hint: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"Unsupported value: '{path}' does not support '{value}'. {hint}",
        code="unsupported_value",
        param=path,
    )


def _raw(value: object, _path: str) -> object:
    """Checked later, against the model's limits."""
    return value


HONOURED: Final[dict[str, Check]] = {
    "temperature": number(0, 2),
    "top_p": _top_p,
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "logit_bias": _logit_bias,
    "logprobs": boolean,
    "top_logprobs": integer(0, TOP_LOGPROBS_MAX),
    "stop": _stop,
    "seed": integer(INT64_MIN, INT64_MAX),
    "response_format": check_response_format,
    # The engine's own, sent through the SDK's `extra_body`.
    "top_k": _top_k,
    "min_p": number(0, 1),
    "repetition_penalty": _repetition_penalty,
    "regex": text(GRAMMAR_CHARS_MAX),
    "ebnf": text(GRAMMAR_CHARS_MAX),
    "stop_token_ids": _stop_token_ids,
    "ignore_eos": boolean,
    "min_tokens": integer(0, TOKEN_ID_MAX),
    "chat_template_kwargs": _chat_template_kwargs,
    "separate_reasoning": boolean,
    "continue_final_message": boolean,
}

GATEWAY: Final[dict[str, Check]] = {
    "messages": lambda value, _path: check_messages(value),
    "stream": boolean,
    "stream_options": _stream_options,
    "max_completion_tokens": _raw,
    "max_tokens": _raw,
    "n": _raw,
    "tools": lambda value, _path: check_tools(value),
    "tool_choice": check_choice,
    "parallel_tool_calls": boolean,
    "reasoning_effort": one_of("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "metadata": _metadata,
    "priority": one_of("interactive", "batch"),
    "service_tier": one_of("auto", "default", "flex", "scale", "priority", "fast"),
    "user": string(LABEL_CHARS_MAX),
    "safety_identifier": string(SAFETY_IDENTIFIER_CHARS_MAX),
}

ACCEPTED: Final[dict[str, Check]] = {
    "verbosity": _verbosity,
    "prompt_cache_key": string(LABEL_CHARS_MAX),
    "prompt_cache_options": _prompt_cache_options,
    "prompt_cache_retention": one_of("in_memory", "in-memory", "24h"),
    "store": _store,
    "modalities": _modalities,
    "prediction": _prediction,
}

REFUSED: Final[dict[str, str]] = {
    "functions": "Use 'tools'.",
    "function_call": "Use 'tool_choice'.",
    "audio": "Text only is served.",
    "moderation": "Answers are not moderated here.",
    "web_search_options": "The model has no access to the web.",
}


def refuse(name: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"Unsupported parameter: '{name}' is not supported. {REFUSED[name]}", param=name
    )
