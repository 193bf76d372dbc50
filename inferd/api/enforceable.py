"""Whether a grammar can hold an answer to a JSON schema exactly, keyword by keyword. Pure.

The engine makes a grammar of nearly every schema, and silently leaves out what it cannot express:
keywords beside a `$ref`, bounds without a `type`, all but one of several combined schemas. What
would be left out is found here and refused, so that an answer never breaks its schema with a 200.
What is only narrower than the schema (a fixed order of properties) is fine. The rules were found by
running the JSON Schema test suite through the engine's compiler; a test of the real engine repeats
that.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from inferd.api import safe_pattern
from inferd.api.schema_references import References

Node = dict[str, Any]

NODES_MAX: Final = 1_024
"""Schemas in a schema; a thousand optional properties take the engine two seconds."""
ENUM_VALUES_MAX: Final = 1_000
LENGTHS_MAX: Final = 8
"""Different bounds on the length of strings: the engine needs up to a few seconds for each."""
COUNTED_PROPERTIES_MAX: Final = 16
"""Properties beside `minProperties` or `maxProperties`: the grammar holds every combination."""

FORMATS: Final = frozenset(
    {
        "date",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "json-pointer",
        "relative-json-pointer",
        "time",
        "uri",
        "uri-reference",
        "uri-template",
        "uuid",
    }
)
_NEVER: Final = (
    "$dynamicRef",
    "$recursiveRef",
    "additionalItems",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "disallow",
    "divisibleBy",
    "else",
    "extends",
    "if",
    "maxContains",
    "minContains",
    "multipleOf",
    "not",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_STRING: Final = ("format", "maxLength", "minLength", "pattern")
_NUMBER: Final = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum")
_ARRAY: Final = ("items", "maxItems", "minItems", "prefixItems")
_OBJECT: Final = (
    "additionalProperties",
    "maxProperties",
    "minProperties",
    "patternProperties",
    "properties",
    "propertyNames",
    "required",
)
_SHAPERS: Final = ("$ref", "const", "enum", "allOf", "anyOf", "oneOf")
"""Of these the grammar follows one and forgets what else stands beside it."""
_CONSTRAINTS: Final = ("type", *_STRING, *_NUMBER, *_ARRAY, *_OBJECT)
_NEEDS_TYPE: Final = {
    **dict.fromkeys(_STRING, "string"),
    **dict.fromkeys(_NUMBER, "number"),
    "maxItems": "array",
    "minItems": "array",
    "maxProperties": "object",
    "minProperties": "object",
    "patternProperties": "object",
    "propertyNames": "object",
}
_NAME_RULES: Final = frozenset({"type", "pattern", "enum", "const", "minLength", "maxLength"})


class Problem(NamedTuple):
    """What cannot be enforced: a keyword, the place of its schema as a JSON pointer, and why."""

    keyword: str
    pointer: str
    reason: str


class _Unenforceable(Exception):
    def __init__(self, keyword: str, reason: str) -> None:
        super().__init__(keyword)
        self.keyword = keyword
        self.reason = reason


def problem(schema: Node) -> Problem | None:
    """The first thing in a schema that a grammar would not hold; None if it holds everything.

    The schema has passed `SchemaChecker`: its keywords have values of the right form.
    """
    return _Walk(schema).run()


class _Walk:
    def __init__(self, root: Node) -> None:
        self._references = References(root)
        self._stack: list[tuple[Node | bool, str]] = [(root, "#")]
        self._enum_values = 0
        self._lengths: set[str] = set()

    def run(self) -> Problem | None:
        seen = 0
        while self._stack:
            node, pointer = self._stack.pop()
            seen += 1
            if seen > NODES_MAX:
                return Problem("properties", "#", f"over {NODES_MAX} schemas in one")
            if node is False:
                return Problem("false", pointer, "nothing is valid there")
            try:
                if isinstance(node, dict):
                    self._node(node, pointer)
            except _Unenforceable as found:
                return Problem(found.keyword, pointer, found.reason)
        if endless := self._references.endless():
            return Problem("$ref", endless, "no value of it would ever end")
        return None

    def _node(self, node: Node, pointer: str) -> None:
        for keyword in _NEVER:
            if keyword in node:
                raise _Unenforceable(keyword, "it would be ignored")
        if node.get("uniqueItems") is not None and node["uniqueItems"] is not False:
            raise _Unenforceable("uniqueItems", "it would be ignored")
        if pointer != "#" and "$id" in node:
            raise _Unenforceable("$id", "only the whole schema may have one")
        shapers: list[str] = [keyword for keyword in _SHAPERS if keyword in node]
        if shapers:
            self._shaped(node, shapers, pointer)
            return
        _check_types(node)
        _check_numbers(node)
        self._check_string(node)
        self._check_object(node)
        self._push_children(node, pointer)

    def _shaped(self, node: Node, shapers: list[str], pointer: str) -> None:
        keyword = shapers[0]
        beside = [*shapers[1:], *(name for name in _CONSTRAINTS if name in node)]
        if keyword in {"const", "enum"}:
            values = [node["const"]] if keyword == "const" else node["enum"]
            self._enum_values += len(values)
            if self._enum_values > ENUM_VALUES_MAX:
                raise _Unenforceable(keyword, f"over {ENUM_VALUES_MAX} values in one schema")
            if beside == ["type"] and all(_has_type(value, node["type"]) for value in values):
                return
        if beside:
            raise _Unenforceable(beside[0], f"it would be ignored beside '{keyword}'")
        if keyword == "$ref":
            if not self._references.resolves(node["$ref"]):
                raise _Unenforceable(
                    "$ref", "it must be '#' or a path of plain names to a schema, as '#/$defs/name'"
                )
        elif keyword == "allOf" and len(node["allOf"]) > 1:
            raise _Unenforceable("allOf", "only one of its schemas would be followed")
        elif keyword == "oneOf" and not self._references.disjoint(node["oneOf"]):
            raise _Unenforceable(
                "oneOf",
                "its schemas may overlap: give them different types, or a required property with "
                "a 'const' of its own; or use 'anyOf'",
            )
        if keyword in {"allOf", "anyOf", "oneOf"}:
            for index, child in enumerate(node[keyword]):
                self._stack.append((child, f"{pointer}/{keyword}/{index}"))

    def _check_string(self, node: Node) -> None:
        if "string" not in _types(node):
            return
        groups: list[str] = [name for name in ("format", "pattern") if name in node]
        if "minLength" in node or "maxLength" in node:
            groups.append("minLength" if "minLength" in node else "maxLength")
            self._lengths.add(f"{node.get('minLength')} {node.get('maxLength')}")
            if len(self._lengths) > LENGTHS_MAX:
                raise _Unenforceable(
                    groups[-1], f"over {LENGTHS_MAX} different bounds of length take too long"
                )
        if len(groups) > 1:
            raise _Unenforceable(groups[1], f"it cannot be enforced together with '{groups[0]}'")
        if "format" in node and str(node["format"]) not in FORMATS:
            raise _Unenforceable("format", "this format would be ignored")
        if "pattern" in node:
            _check_pattern("pattern", node["pattern"])

    def _check_object(self, node: Node) -> None:
        properties = node.get("properties") or {}
        for name in node.get("required", ()):
            if name not in properties:
                raise _Unenforceable("required", "a required property must be in 'properties'")
        if ("minProperties" in node or "maxProperties" in node) and (
            len(properties) > COUNTED_PROPERTIES_MAX
        ):
            keyword = "minProperties" if "minProperties" in node else "maxProperties"
            raise _Unenforceable(
                keyword, f"it takes too long beside over {COUNTED_PROPERTIES_MAX} properties"
            )
        for keyword in ("patternProperties", "propertyNames"):
            if keyword in node and properties:
                raise _Unenforceable(keyword, "it would be ignored for what is in 'properties'")
        for pattern in node.get("patternProperties", ()):
            _check_pattern("patternProperties", pattern)
        names = node.get("propertyNames")
        if names is None:
            return
        if not isinstance(names, dict) or not _NAME_RULES.issuperset(names):
            raise _Unenforceable("propertyNames", "only a pattern, an enum or a length is followed")
        self._check_string({**names, "type": "string"})

    def _push_children(self, node: Node, pointer: str) -> None:
        for keyword in ("properties", "patternProperties"):
            for name, child in (node.get(keyword) or {}).items():
                self._stack.append((child, f"{pointer}/{keyword}/{name}"))
        for keyword in ("items", "additionalProperties"):
            child = node.get(keyword)
            if isinstance(child, list):
                raise _Unenforceable("items", "an array of schemas is written 'prefixItems'")
            if isinstance(child, dict):
                self._stack.append((child, f"{pointer}/{keyword}"))
        for index, child in enumerate(node.get("prefixItems", ())):
            self._stack.append((child, f"{pointer}/prefixItems/{index}"))
        for keyword in ("$defs", "definitions"):
            for name, child in (node.get(keyword) or {}).items():
                self._stack.append((child, f"{pointer}/{keyword}/{name}"))


def _types(node: Node) -> frozenset[str]:
    given = node.get("type", ())
    return frozenset([given] if isinstance(given, str) else given)


def _check_types(node: Node) -> None:
    if "type" in node:
        return
    for keyword, wanted in _NEEDS_TYPE.items():
        if keyword in node:
            raise _Unenforceable(keyword, f"it would be ignored without 'type': '{wanted}'")


def _check_numbers(node: Node) -> None:
    if not _types(node) & {"integer", "number"}:
        return
    for keyword in _NUMBER:
        bound = node.get(keyword, 0)
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            raise _Unenforceable(keyword, "it must be a number")


def _check_pattern(keyword: str, pattern: object) -> None:
    wrong = safe_pattern.problem(pattern) if isinstance(pattern, str) else "it must be a string"
    if wrong:
        raise _Unenforceable(keyword, wrong)


_PYTHON_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}


def _has_type(value: object, types: str | list[str]) -> bool:
    names = [types] if isinstance(types, str) else types
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _PYTHON_TYPES[name]) for name in names)
