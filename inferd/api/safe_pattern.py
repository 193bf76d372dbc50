"""Regular expressions that the engine's grammar follows exactly: a subset of ECMAScript's.

Pure; one pass over the characters, nothing is compiled or matched here. The grammar takes other
expressions too, but some of them with another meaning: it drops what a look-ahead says and ignores
an anchor in the middle.
"""

from __future__ import annotations

import re
from typing import Final

PATTERN_CHARS_MAX: Final = 1_024
REPEATS_MAX: Final = 1_000
REPEATS_PRODUCT_MAX: Final = 10_000
GROUPS_DEPTH_MAX: Final = 16

_ESCAPE: Final = re.compile(r"\\(?:[dDwWsSnrtfv]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[^A-Za-z0-9])")
_COUNT: Final = re.compile(r"\{(\d{1,6})(?:(,)(\d{1,6})?)?\}")
_CLASS_END: Final = "]"


def problem(pattern: str) -> str | None:
    """Why an expression cannot be followed exactly; None if it can."""
    if len(pattern) > PATTERN_CHARS_MAX:
        return f"it has {len(pattern)} characters, over {PATTERN_CHARS_MAX}"
    return _Reader(pattern).read()


class _Reader:
    """Reads one expression; `_groups` holds the repeats that each open group stands in."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._can_repeat = False
        self._open = 0
        self._product = 1

    def read(self) -> str | None:
        while self._at < len(self._pattern):
            if wrong := self._step(self._pattern[self._at]):
                return wrong
        if self._open:
            return "a group is not closed"
        if self._product > REPEATS_PRODUCT_MAX:
            return f"its repeats multiply to more than {REPEATS_PRODUCT_MAX}"
        return None

    def _step(self, char: str) -> str | None:
        wrong = None
        match char:
            case "\\":
                wrong = self._escape()
            case "[":
                wrong = self._class()
            case "(":
                wrong = self._group()
            case ")":
                self._open -= 1
                self._take(1, repeatable=True)
                wrong = "a group is closed that was not opened" if self._open < 0 else None
            case "*" | "+" | "?":
                wrong = self._quantifier(1)
            case "{":
                wrong = self._count()
            case "^" | "$":
                wrong = self._anchor(char)
            case "]" | "}":
                wrong = f"'{char}' must be written '\\{char}'"
            case _:
                self._take(1, repeatable=char != "|")
        return wrong

    def _take(self, chars: int, *, repeatable: bool) -> None:
        self._at += chars
        self._can_repeat = repeatable

    def _escape(self) -> str | None:
        found = _ESCAPE.match(self._pattern, self._at)
        if found is None:
            return f"'{self._pattern[self._at : self._at + 2]}' is not supported"
        self._take(len(found[0]), repeatable=True)
        return None

    def _class(self) -> str | None:
        at = self._at + 1
        if self._pattern.startswith("^", at):
            at += 1
        if self._pattern.startswith(_CLASS_END, at):
            return "a character class is empty"
        while at < len(self._pattern) and self._pattern[at] != _CLASS_END:
            if self._pattern[at] == "[":
                return "'[' in a character class must be written '\\['"
            if self._pattern[at] == "\\":
                found = _ESCAPE.match(self._pattern, at)
                if found is None:
                    return f"'{self._pattern[at : at + 2]}' is not supported"
                at += len(found[0])
            else:
                at += 1
        if at >= len(self._pattern):
            return "a character class is not closed"
        self._take(at + 1 - self._at, repeatable=True)
        return None

    def _group(self) -> str | None:
        plain = self._pattern.startswith("(?:", self._at)
        if not plain and self._pattern.startswith("(?", self._at):
            return "look-around, named and flagged groups are not supported: write '(' or '(?:'"
        self._open += 1
        self._take(3 if plain else 1, repeatable=False)
        return "its groups are nested too deeply" if self._open > GROUPS_DEPTH_MAX else None

    def _quantifier(self, chars: int) -> str | None:
        if not self._can_repeat:
            return "a quantifier has nothing to repeat"
        self._take(chars, repeatable=False)
        if self._pattern.startswith("?", self._at):  # which of several matches is of no matter here
            self._at += 1
        return None

    def _count(self) -> str | None:
        found = _COUNT.match(self._pattern, self._at)
        if found is None:
            return "'{' that begins no count must be written '\\{'"
        low, high = int(found[1]), int(found[3] or found[1])
        if low > high or high > REPEATS_MAX:
            return f"the count '{found[0]}' is not within 0 to {REPEATS_MAX}"
        self._product *= max(1, high)
        return self._quantifier(len(found[0]))

    def _anchor(self, char: str) -> str | None:
        """`^` at the start and `$` at the end of the whole or of a top-level alternative."""
        before = self._pattern[self._at - 1] if self._at else "|"
        after = self._pattern[self._at + 1] if self._at + 1 < len(self._pattern) else "|"
        if self._open or (before if char == "^" else after) != "|":
            return f"'{char}' is only supported at the {'start' if char == '^' else 'end'}"
        self._take(1, repeatable=False)
        return None
