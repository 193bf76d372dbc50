"""Bounds and shape of a JSON schema that a client sends: size, depth, types, references.

Pure. What passes here means what JSON Schema says; whether a grammar can hold an answer to it is
the question of `enforceable`, which is asked where the answer must be held.
"""

from __future__ import annotations

from typing import Final

import orjson

from inferd.api import enforceable
from inferd.api.fields import shown, type_name
from inferd.errors import InvalidField

SCHEMA_BYTES_MAX: Final = 65_536
SCHEMA_DEPTH_MAX: Final = 32
"""Schemas inside schemas; also levels of plain data, as in `enum` or `default`."""
POINTER_CHARS_MAX: Final = 256

_TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_SCHEMA: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMA_MAPS: Final = frozenset(
    {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
)
# Keywords whose value has a shape of its own; any other one's value is plain data.
_SHAPED: Final = _SCHEMA | _SCHEMA_LISTS | _SCHEMA_MAPS | {"$ref", "enum", "required", "type"}

# A place in the schema, linked to what it is in: made into a JSON pointer only for an error.
Place = tuple["Place", str] | None


class SchemaChecker:
    """Walks one schema without recursion."""

    def __init__(self, path: str, code: str) -> None:
        self._path = path
        self._code = code
        self._stack: list[tuple[object, int, Place]] = []

    def check(self, schema: dict[str, object]) -> int:
        """The schema's size as JSON, in bytes.

        Raises:
            InvalidField: too large, too deep, or not a JSON schema.
        """
        size = self._size(schema)
        self._stack.append((schema, 1, None))
        while self._stack:
            node, depth, place = self._stack.pop()
            if isinstance(node, bool):
                continue
            if not isinstance(node, dict):
                raise self._wrong(place, f"a schema is an object, not {type_name(node)}")
            if depth > SCHEMA_DEPTH_MAX:
                raise self._too_deep()
            for keyword, value in node.items():
                if keyword in _SHAPED:
                    self._shaped(keyword, value, depth, (place, keyword))
                elif isinstance(value, dict | list):
                    self._data(value)
        return size

    def check_enforceable(self, schema: dict[str, object]) -> None:
        """The engine's grammar can hold an answer to a schema that has passed `check`.

        Raises:
            InvalidField: with the keyword that would be ignored, its place, and why.
        """
        if found := enforceable.problem(schema):
            keyword, pointer = shown(found.keyword), _clipped(found.pointer)
            raise InvalidField(
                f"Invalid '{self._path}': '{keyword}' at '{pointer}' of the schema cannot be "
                f"enforced: {found.reason}.",
                code=self._code,
                param=self._path,
            )

    def _size(self, schema: dict[str, object]) -> int:
        try:
            size = len(orjson.dumps(schema))
        except orjson.JSONEncodeError:  # its own limit of 254 levels; nothing else can fail here
            raise self._too_deep() from None
        if size > SCHEMA_BYTES_MAX:
            raise InvalidField(
                f"Invalid '{self._path}': the schema has {size} bytes. "
                f"Expected at most {SCHEMA_BYTES_MAX} bytes.",
                code=self._code,
                param=self._path,
            )
        return size

    def _shaped(self, keyword: str, value: object, depth: int, place: Place) -> None:
        if keyword == "type":
            self._type(value, place)
        elif keyword in _SCHEMA_MAPS:
            if not isinstance(value, dict):
                raise self._wrong(place, f"expected an object, not {type_name(value)}")
            for name, child in value.items():
                self._stack.append((child, depth + 1, (place, name)))
        elif keyword in _SCHEMA and not (keyword == "items" and isinstance(value, list)):
            self._stack.append((value, depth + 1, place))
        elif keyword in _SCHEMA_LISTS or keyword == "items":  # a list: the form of older drafts
            if not isinstance(value, list) or not value:
                raise self._wrong(place, "expected a non-empty array of schemas")
            for index, child in enumerate(value):
                self._stack.append((child, depth + 1, (place, str(index))))
        else:
            self._words(keyword, value, place)

    def _type(self, value: object, place: Place) -> None:
        if isinstance(value, str) and value in _TYPES:
            return
        names = value if isinstance(value, list) else [value]
        if not names:
            raise self._wrong(place, "expected at least one type")
        for name in names:
            if not isinstance(name, str) or name not in _TYPES:
                got = f"'{shown(name)}'" if isinstance(name, str) else type_name(name)
                raise self._wrong(place, f"{got} is not a JSON type")

    def _words(self, keyword: str, value: object, place: Place) -> None:
        if keyword == "$ref":
            if not isinstance(value, str) or not value.startswith("#"):
                raise self._wrong(place, "'$ref' is followed inside the schema only ('#…')")
        elif keyword == "required":
            if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
                raise self._wrong(place, "expected an array of strings")
        elif not isinstance(value, list) or not value:  # enum
            raise self._wrong(place, "expected a non-empty array")
        else:
            self._data(value)

    def _data(self, value: object) -> None:
        if depth_of(value, SCHEMA_DEPTH_MAX) > SCHEMA_DEPTH_MAX:
            raise self._too_deep()

    def _too_deep(self) -> InvalidField:
        return InvalidField(
            f"Invalid '{self._path}': the schema is nested too deeply. "
            f"Expected at most {SCHEMA_DEPTH_MAX} levels.",
            code=self._code,
            param=self._path,
        )

    def _wrong(self, place: Place, problem: str) -> InvalidField:
        steps: list[str] = []
        while place is not None:
            place, step = place
            steps.append(shown(step))
        pointer = "/".join(["#", *reversed(steps)])
        return InvalidField(
            f"Invalid '{self._path}': not a valid JSON schema at '{pointer}': {problem}.",
            code=self._code,
            param=self._path,
        )


def _clipped(pointer: str) -> str:
    """A pointer as an error may show it: of a long one the end."""
    if len(pointer) <= POINTER_CHARS_MAX:
        return pointer
    return "…" + pointer[-POINTER_CHARS_MAX:]


def depth_of(value: object, depth_max: int) -> int:
    """Levels of arrays and objects, 0 for a scalar; stops counting past `depth_max`."""
    depth = 0
    level = [value] if isinstance(value, dict | list) else []
    while level and depth <= depth_max:
        depth += 1
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
    return depth
