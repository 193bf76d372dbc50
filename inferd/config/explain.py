"""What pydantic found wrong, in the words of the file: pure, one `Problem` for each error.

Also removes what is wrong where that leaves a whole configuration, so that the cross-field checks
can speak in the same run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, get_args, get_origin

from pydantic_core import ErrorDetails

from inferd.config.locate import KeyPath, show_path
from inferd.config.problems import Problem, did_you_mean, nearest, number, shown
from inferd.config.schema import section_at, section_in
from inferd.config.section import PATTERNS

_WANTED: Final = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "an array",
    "dict_type": "a table",
    "model_type": "a table",
}
_BOUNDS: Final = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def explain(errors: Iterable[ErrorDetails]) -> list[Problem]:
    """One problem an error, less those that only follow from others."""
    return [_problem(error) for error in errors if not _follows_from_others(error)]


def _follows_from_others(error: ErrorDetails) -> bool:
    """Pydantic calls an array too short when its entries were wrong."""
    return error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]


def _problem(error: ErrorDetails) -> Problem:
    kind, path, value = error["type"], error["loc"], error["input"]
    context: Mapping[str, Any] = error.get("ctx", {})
    if kind == "extra_forbidden":
        return Problem(path[:-1], _unknown_key(path), at=path)
    if kind == "missing":
        return Problem(path[:-1], _missing_key(path))
    if kind == "literal_error":
        return Problem(path, _no_such_choice(path, value))
    if kind in _WANTED:
        return Problem(path, _wrong_type(path, _WANTED[kind], value))
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return Problem(path, f"must be {words} {number(context[bound])}, not {number(value)}")
    return Problem(path, _other(kind, path, value, context) or error["msg"])


def _other(kind: str, path: KeyPath, value: Any, context: Mapping[str, Any]) -> str | None:  # noqa: ANN401
    if kind == "string_pattern_mismatch":
        return f"{PATTERNS[context['pattern']]}; this is {shown(value, path)}"
    if kind == "too_short":
        return f"needs at least {context['min_length']}"
    if kind == "too_long":
        return f"may hold at most {context['max_length']:,} entries"
    if kind == "string_too_short":
        return "must not be empty"
    if kind == "string_too_long":
        return f"may be at most {context['max_length']:,} characters long"
    return None


def _unknown_key(path: KeyPath) -> str:
    """Names the key that was meant: of a sub-table, of this table, or of a table around it."""
    key, parent = str(path[-1]), path[:-1]
    unknown = f'unknown key "{key}"'
    if below := _sub_table_with(key, parent):
        return f'{unknown} (did you mean "{below}.{key}"?)'
    section = section_at(parent)
    known = list(section.model_fields) if section else []
    if not nearest(key, known):
        for length in range(len(parent) - 1, 0, -1):
            around = parent[:length]
            section = section_at(around)
            if section and key in section.model_fields and isinstance(parent[length], str):
                owner = show_path(around)
                return f"{unknown} (it belongs to {owner}: its own keys stand above its sub-tables)"
            if below := _sub_table_with(key, around):
                return f"{unknown} (it belongs to {show_path((*around, below))})"
    return unknown + did_you_mean(key, known)


def _sub_table_with(key: str, parent: KeyPath) -> str | None:
    """The table directly below `parent` that has such a key."""
    section = section_at(parent)
    for name in section.model_fields if section else ():
        below = section_at((*parent, name))
        if below and key in below.model_fields:
            return name
    return None


def _missing_key(path: KeyPath) -> str:
    if section_in(_field_type(path)):
        name = ".".join(part for part in path if isinstance(part, str))
        return f"needs at least one [[{name}]]"
    return f'missing key "{path[-1]}"'


def _field_type(path: KeyPath) -> Any:  # noqa: ANN401 (a type expression)
    while isinstance(path[-1], int):
        path = path[:-1]
    section = section_at(path[:-1])
    return section.model_fields[str(path[-1])].annotation if section else None


def _no_such_choice(path: KeyPath, value: Any) -> str:  # noqa: ANN401
    annotation = _field_type(path)
    literals = [annotation, *get_args(annotation)]
    choices = [c for part in literals if get_origin(part) is Literal for c in get_args(part)]
    listed = " or ".join(f'"{choice}"' for choice in choices)
    guess = nearest(value, choices) if isinstance(value, str) else None
    hint = f' (did you mean "{guess}"?)' if guess else ""
    return f"must be {listed}, not {shown(value, path)}{hint}"


def _wrong_type(path: KeyPath, wanted: str, value: Any) -> str:  # noqa: ANN401
    if wanted == "an array" and isinstance(value, dict) and section_in(_field_type(path)):
        name = ".".join(part for part in path if isinstance(part, str))
        return f"must be an array of tables: write [[{name}]], not [{name}]"
    return f"must be {wanted}, not {shown(value, path)}"


def without_mistakes(data: dict[str, Any], errors: Iterable[ErrorDetails]) -> dict[str, Any] | None:
    """`data` less the keys that are wrong; None where a required key is among them.

    Names that other sections refer to are never removed: that would make good references wrong.
    """
    for error in errors:
        if _follows_from_others(error):
            continue
        path = _optional_key(error)
        if path is None:
            return None
        data = _removed(data, path)
    return data


def _optional_key(error: ErrorDetails) -> KeyPath | None:
    """The key whose removal repairs the error."""
    path = error["loc"]
    if error["type"] == "extra_forbidden":
        return path
    for length in range(len(path), 0, -1):
        section, key = section_at(path[: length - 1]), path[length - 1]
        if section and isinstance(key, str):
            field = section.model_fields[key]
            return None if field.is_required() or key == "aliases" else path[:length]
    return None


def _removed(data: Any, path: KeyPath) -> Any:  # noqa: ANN401 (tables and arrays, nested)
    """A copy without the entry; unchanged if it is already gone."""
    part, rest = path[0], path[1:]
    if isinstance(part, int):
        return (*data[:part], _removed(data[part], rest), *data[part + 1 :])
    if part not in data:
        return data
    if rest:
        return {**data, part: _removed(data[part], rest)}
    return {key: value for key, value in data.items() if key != part}
