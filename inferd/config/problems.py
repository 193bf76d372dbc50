"""One thing that is wrong with inferd.toml, and how all of them are told.

Pure. A problem names a config path; its line is found when it is rendered. Messages say what is
wrong and what is allowed, and give the nearest valid name. Values that may be secrets are never
repeated: `shown` is the one way a value of the file gets into a message.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, time
from typing import Any, Final

from inferd.config.locate import KeyPath, Locations, show_path

_VALUE_CHARACTERS_MAX: Final = 60
_MAYBE_SECRET: Final = frozenset({"key_env", "env", "url", "extra_args"})
_SAME_THING: Final = {"gpu": "cuda"}


@dataclass(frozen=True, slots=True)
class Problem:
    """`path` is what the message speaks of; `at`, if it is another, what has the line."""

    path: KeyPath
    message: str
    at: KeyPath | None = None
    unless: KeyPath | None = None
    """Not told while anything inside this is mistaken, for that may be the cause of it."""


def render(problems: Iterable[Problem], file: str, locations: Locations) -> list[str]:
    """Each problem as `inferd.toml:10: models[1].engine: message`, in the order of the file."""
    lines: dict[tuple[int, str], None] = {}
    for problem in problems:
        line = locations.line(problem.path if problem.at is None else problem.at)
        place = f"{show_path(problem.path)}: " if problem.path else ""
        lines[line, f"{file}:{line}: {place}{problem.message}"] = None
    return [text for _, text in sorted(lines, key=lambda entry: entry[0])]


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that was most likely meant, if any is close."""
    by_folded = {choice.casefold(): choice for choice in choices}
    wanted = _SAME_THING.get(name.casefold(), name.casefold())
    found = difflib.get_close_matches(wanted, by_folded, n=1)
    return by_folded[found[0]] if found else None


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """` (did you mean "x"?)`, or what there is to choose from, or nothing if that is long."""
    known = list(choices)
    if guess := nearest(name, known):
        return f' (did you mean "{guess}"?)'
    listed = ", ".join(f'"{choice}"' for choice in known)
    return f" (there is {listed})" if known and len(listed) <= 4 * _VALUE_CHARACTERS_MAX else ""


def shown(value: Any, path: KeyPath) -> str:  # noqa: ANN401 (any value of a TOML file)
    """The kind of a value and, where it is short and cannot be a secret, the value."""
    kind, text = _kind(value), ""
    if isinstance(value, str):
        text = f'"{value}"'
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, int | float | date | time):
        text = str(value)
    too_long = len(text) > _VALUE_CHARACTERS_MAX or "\n" in text
    return kind if too_long or not text or _MAYBE_SECRET & set(path) else f"{kind} {text}"


def number(value: float) -> str:
    """`86,400` for both 86400 and 86400.0."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.12g}"


def _kind(value: object) -> str:
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "the boolean"),
        (str, "the string"),
        (int, "the integer"),
        (float, "the number"),
        ((date, time), "the date or time"),
        (dict, "a table"),
    )
    return next((name for types, name in kinds if isinstance(value, types)), "an array")
