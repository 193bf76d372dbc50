"""Texts and token ids, one or many: what `prompt` and `input` may be.

Pure. The engine gets them as they are: a text, texts, ids, or arrays of ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from inferd.api.fields import Schema, as_array, text, utf8_bytes, wrong_type
from inferd.api.sampling import token_id
from inferd.errors import InvalidField

CHARS_MAX: Final = 1_073_741_824
"""A text is bounded by the body it came in and by the model's context, not for itself."""
_text: Final = text(CHARS_MAX)


@dataclass(frozen=True, slots=True)
class Prompts:
    """Checked: `value` is what the client sent."""

    value: object
    count: int
    text_bytes: int = 0
    token_ids: int = 0
    largest_id: int = -1


_TEXT: Final = {"type": "string", "minLength": 1}


def texts_schema(count_max: int) -> Schema:
    """One text or several in JSON Schema."""
    many = {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": count_max}
    return {"anyOf": [_TEXT, many]}


def schema(count_max: int, ids_max: int) -> Schema:
    """The four forms in JSON Schema."""
    one_text = _TEXT
    ids = {"type": "array", "items": token_id.schema, "minItems": 1, "maxItems": ids_max}
    return {
        "anyOf": [
            one_text,
            {"type": "array", "items": one_text, "minItems": 1, "maxItems": count_max},
            ids,
            {"type": "array", "items": ids, "minItems": 1, "maxItems": count_max},
        ]
    }


def check_prompts(value: object, path: str, count_max: int, ids_max: int) -> Prompts:
    """Check one of the four forms.

    Raises:
        InvalidField: empty, mixed, too many, or not a token id.
    """
    if isinstance(value, str):
        return Prompts(value, 1, utf8_bytes(_text(value, path)))
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array", value)
    first = as_array(value, path, max(count_max, ids_max))[0]
    if isinstance(first, int) and not isinstance(first, bool):
        largest = _ids(value, path, ids_max)
        return Prompts(value, 1, token_ids=len(value), largest_id=largest)
    items = as_array(value, path, count_max)
    if isinstance(first, list):
        largest = max(_ids(item, f"{path}[{i}]", ids_max) for i, item in enumerate(items))
        return Prompts(value, len(items), token_ids=sum(map(len, value)), largest_id=largest)
    size = sum(utf8_bytes(_text(item, f"{path}[{i}]")) for i, item in enumerate(items))
    return Prompts(value, len(items), size)


def _ids(value: object, path: str, ids_max: int) -> int:
    items = as_array(value, path, ids_max)
    return max(token_id(item, f"{path}[{index}]") for index, item in enumerate(items))


def not_blank(prompts: Prompts, path: str) -> None:
    """Refuse texts of white space alone, which the engine takes for empty ones."""
    value = prompts.value
    items = value if isinstance(value, list) else [value]
    for index, item in enumerate(items):
        if isinstance(item, str) and not item.strip():
            where = f"{path}[{index}]" if isinstance(value, list) else path
            raise InvalidField(
                f"Invalid '{where}': the text holds nothing but white space.",
                code="empty_string",
                param=where,
            )
