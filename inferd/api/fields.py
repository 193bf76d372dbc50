"""Checks of single JSON values, and the one wording of what is wrong with each.

Pure. A check takes a value and its path and returns what the engine gets; it raises `InvalidField`
with OpenAI's code and the path as `param`. Types are strict: no bool is an int, no "1" is 1.
Values that a client sent are shown clipped, so that an error never carries a prompt. A `Rule` is a
check with the JSON schema of what it takes: the published document is made of the same objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Generic, TypeVar

from inferd.errors import InvalidField, RequestError, UnknownParameter

T_co = TypeVar("T_co", covariant=True)
Check = Callable[[object, str], object]
Schema = Mapping[str, object]

NAME_CHARS_MAX: Final = 64
SHOWN_CHARS_MAX: Final = 64
RULES_MAX: Final = 1_024
"""Kept of those that are made for a model's limits: every request asks for two."""
INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_NAME_PATTERN: Final = "^[a-zA-Z0-9_-]+$"


@dataclass(frozen=True, slots=True)
class Rule(Generic[T_co]):
    """One check, and what it takes in the words of JSON Schema."""

    check: Callable[[object, str], T_co]
    schema: Schema

    def __call__(self, value: object, path: str) -> T_co:
        return self.check(value, path)


def shown(text: str) -> str:
    """A client's text as an error message may show it."""
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "…"


def type_name(value: object) -> str:
    """What a JSON value is, as a phrase of an error message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a decimal number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def wrong_type(path: str, expected: str, value: object) -> InvalidField:
    return InvalidField(
        f"Invalid type for '{path}': expected {expected}, but got {type_name(value)} instead.",
        code="invalid_type",
        param=path,
    )


def not_supported_value(path: str, value: str, supported: tuple[str, ...]) -> InvalidField:
    return InvalidField(
        f"Invalid '{path}': got '{shown(value)}'. Supported values are: {listed(supported)}.",
        code="invalid_value",
        param=path,
    )


def missing(path: str) -> InvalidField:
    return InvalidField(
        f"Missing required parameter: '{path}'.", code="missing_required_parameter", param=path
    )


def unknown(path: str) -> UnknownParameter:
    return UnknownParameter(f"Unknown parameter: '{path}'.", param=path)


def combination(message: str, param: str) -> RequestError:
    """Two parameters that are each fine, but not together."""
    return RequestError(message, code="invalid_parameter_combination", param=param)


def listed(values: tuple[str, ...]) -> str:
    quoted = [f"'{value}'" for value in values]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + f" and {quoted[-1]}"


def member(path: str, key: str) -> str:
    """The path of an object's key; the key is a client's, so it is clipped."""
    return f"{path}.{shown(key)}"


def as_object(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    return value


def as_string(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    return value


def as_array(value: object, path: str, length_max: int) -> list[object]:
    """A non-empty array of at most `length_max` items."""
    if not isinstance(value, list):
        raise wrong_type(path, "an array", value)
    if not value:
        raise InvalidField(
            f"Invalid '{path}': empty array. Expected an array with minimum length 1, "
            "but got an empty array instead.",
            code="empty_array",
            param=path,
        )
    if len(value) > length_max:
        raise InvalidField(
            f"Invalid '{path}': array too long. Expected an array with maximum length "
            f"{length_max}, but got an array with length {len(value)} instead.",
            code="array_above_max_length",
            param=path,
        )
    return value


def only_keys(value: dict[str, object], path: str, allowed: frozenset[str]) -> None:
    if not allowed.issuperset(value):
        key = next(key for key in value if key not in allowed)
        raise unknown(member(path, key))


def as_name(value: object, path: str) -> str:
    """A tool's or schema's name: 1 to 64 of letters, digits, `_` and `-`."""
    name = text(NAME_CHARS_MAX)(value, path)
    if not _NAME.fullmatch(name):
        raise InvalidField(
            f"Invalid '{path}': string does not match pattern. Expected a string that matches "
            f"the pattern '{_NAME_PATTERN}'.",
            code="invalid_value",
            param=path,
        )
    return name


def _boolean(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(path, "a boolean", value)
    return value


boolean: Final = Rule(_boolean, {"type": "boolean"})


@lru_cache(maxsize=RULES_MAX)
def integer(low: int, high: int) -> Rule[int]:
    """A whole number from `low` to `high`, both included."""

    def check(value: object, path: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            # The parser gives whole numbers of more than 64 bits as floats.
            if isinstance(value, float) and not INT64_MIN <= value <= INT64_MAX:
                raise _out_of_range(path, "integer", value, low, high)
            raise wrong_type(path, "an integer", value)
        if not low <= value <= high:
            raise _out_of_range(path, "integer", value, low, high)
        return value

    return Rule(check, {"type": "integer", "minimum": low, "maximum": high})


def number(low: float, high: float) -> Rule[float]:
    """A number from `low` to `high`, both included."""

    def check(value: object, path: str) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise wrong_type(path, "a decimal number", value)
        if not low <= value <= high:
            raise _out_of_range(path, "decimal", value, low, high)
        return value

    return Rule(check, {"type": "number", "minimum": low, "maximum": high})


def _out_of_range(path: str, kind: str, value: float, low: float, high: float) -> InvalidField:
    if value > high:
        side, bound, code = "above maximum", f"<= {high}", "above_max"
    else:
        side, bound, code = "below minimum", f">= {low}", "below_min"
    return InvalidField(
        f"Invalid '{path}': {kind} {side} value. Expected a value {bound}, "
        f"but got {value} instead.",
        code=f"{kind}_{code}_value",
        param=path,
    )


def string(chars_max: int) -> Rule[str]:
    """A string of at most `chars_max` characters."""

    def check(value: object, path: str) -> str:
        if not isinstance(value, str):
            raise wrong_type(path, "a string", value)
        if len(value) > chars_max:
            raise InvalidField(
                f"Invalid '{path}': string too long. Expected a string with maximum length "
                f"{chars_max}, but got a string with length {len(value)} instead.",
                code="string_above_max_length",
                param=path,
            )
        return value

    return Rule(check, {"type": "string", "maxLength": chars_max})


def text(chars_max: int) -> Rule[str]:
    """A string of 1 to `chars_max` characters."""
    bounded = string(chars_max)

    def check(value: object, path: str) -> str:
        if value == "":
            raise InvalidField(
                f"Invalid '{path}': empty string. Expected a string with minimum length 1, "
                "but got an empty string instead.",
                code="empty_string",
                param=path,
            )
        return bounded(value, path)

    return Rule(check, {"type": "string", "minLength": 1, "maxLength": chars_max})


def one_of(*supported: str) -> Rule[str]:
    """One of a few words."""

    def check(value: object, path: str) -> str:
        if not isinstance(value, str):
            raise wrong_type(path, "a string", value)
        if value not in supported:
            raise not_supported_value(path, value, supported)
        return value

    return Rule(check, {"type": "string", "enum": list(supported)})


def utf8_bytes(value: str) -> int:
    return len(value) if value.isascii() else len(value.encode())
