"""Where in a TOML file a key is: config path -> line number, for error messages.

`tomllib` keeps no positions, so this walks the text once and notes the line of every header, key,
array element and inline table. It reads only text that `tomllib` has accepted, so it never
reports an error of its own; what it does not know falls back to the nearest enclosing entry.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from typing import Final

KeyPath = tuple[str | int, ...]
"""("models", 1, "versions", 0, "engine", "device"): table keys and array indices."""

_BLANK: Final = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SPACE: Final = re.compile(r"[ \t]*")
_KEY: Final = re.compile(r"""[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*'""")
_DOT: Final = re.compile(r"[ \t]*\.[ \t]*")
# Multi-line strings first; up to two quotes may stand before their closing three.
_STRING: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
# Numbers, booleans, dates (with a space in them): everything up to what can follow a value.
_SCALAR: Final = re.compile(r"[^,\]}#\r\n]+")


def show_path(path: KeyPath) -> str:
    """The path as messages write it: `models[1].versions[0].engine`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


class Locations:
    """The lines of one document. Immutable after construction."""

    def __init__(self, text: str) -> None:
        self._lines = _Walk(text).lines

    def line(self, path: KeyPath) -> int:
        """Line (from 1) of the entry, or of the nearest enclosing one that has a place."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def __contains__(self, path: KeyPath) -> bool:
        return path in self._lines


class _Walk:
    """One pass over the text; `lines` is the result."""

    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {(): 1}
        self._text = text
        self._at = 0
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self._arrays: dict[KeyPath, int] = {}
        table: KeyPath = ()
        while self._skip(_BLANK) < len(text):
            if text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        """Move past what matches here, if anything does."""
        if found := pattern.match(self._text, self._at):
            self._at = found.end()
        return self._at

    def _note(self, path: KeyPath, position: int) -> None:
        """The first mention wins, until a table's own header comes."""
        self.lines.setdefault(path, bisect_right(self._starts, position))

    def _keys(self) -> list[str]:
        """A dotted key."""
        keys: list[str] = []
        while True:
            start = self._at
            raw = self._text[start : self._skip(_KEY)]
            # tomllib undoes the escapes of a quoted key.
            keys.append(tomllib.loads(f"key = {raw}")["key"] if raw[0] in "\"'" else raw)
            dot = self._at
            if self._skip(_DOT) == dot:
                return keys

    def _header(self) -> KeyPath:
        """`[table]` or `[[array of tables]]`; a name of an array means its last table."""
        start = self._at
        is_array = self._text.startswith("[[", start)
        self._at += 2 if is_array else 1
        self._skip(_SPACE)
        keys = self._keys()
        self._skip(_SPACE)
        self._at += 2 if is_array else 1
        path: KeyPath = ()
        for key in keys[:-1]:
            path = self._enter((*path, key), start)
        path = (*path, keys[-1])
        if is_array:
            self._note(path, start)
            self._arrays[path] = self._arrays.get(path, -1) + 1
            path = (*path, self._arrays[path])
        self.lines.pop(path, None)
        self._note(path, start)
        return path

    def _enter(self, path: KeyPath, position: int) -> KeyPath:
        self._note(path, position)
        return (*path, self._arrays[path]) if path in self._arrays else path

    def _pair(self, table: KeyPath) -> None:
        """`dotted.key = value`."""
        start = self._at
        path = table
        for key in self._keys():
            path = (*path, key)
            self._note(path, start)
        self._skip(_SPACE)
        self._at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        opening = self._text[self._at]
        if opening == "[":
            self._array(path)
        elif opening == "{":
            self._inline_table(path)
        else:
            self._skip(_STRING if opening in "\"'" else _SCALAR)

    def _array(self, path: KeyPath) -> None:
        self._at += 1
        index = 0
        while self._text[self._skip(_BLANK)] != "]":
            self._note((*path, index), self._at)
            self._value((*path, index))
            index += 1
            self._comma()
        self._at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._at += 1
        while self._text[self._skip(_BLANK)] != "}":
            self._pair(path)
            self._comma()
        self._at += 1

    def _comma(self) -> None:
        if self._text[self._skip(_BLANK)] == ",":
            self._at += 1
