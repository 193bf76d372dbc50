"""A value that satisfies a JSON schema: seeded, small, and always the same for the same seed.

Covers what grammars of the real engine cover and the gateway's tests use: types, enum, const,
anyOf/oneOf/allOf, $ref, properties and required, array and string lengths, number bounds, formats.
"""

from __future__ import annotations

import json
import random
from typing import Any

_WORDS = ("paris", "amber", "river", "north", "delta", "quiet", "maple", "seven")
_FORMATS = {
    "date": "2026-11-30",
    "date-time": "2026-11-30T12:00:00Z",
    "time": "12:00:00Z",
    "email": "name@example.org",
    "uuid": "6f1e0f2a-3d0b-4c52-9d47-0a1b2c3d4e5f",
    "uri": "https://example.org/",
    "ipv4": "192.0.2.1",
}
_TYPES = {"object", "array", "string", "integer", "number", "boolean", "null"}
_DEEPEST = 24


class UnsupportedSchema(ValueError):
    """The schema names something no grammar can be made of."""


class Filler:
    """Fills one schema."""

    def __init__(self, schema: Any, seed: int) -> None:
        self._root = schema
        self._rng = random.Random(seed)

    def text(self) -> str:
        """The JSON text, in the engine's spacing. Raises UnsupportedSchema."""
        return json.dumps(self._value(self._root, 0), ensure_ascii=False)

    def _value(self, schema: Any, depth: int) -> Any:
        if schema is True or schema == {}:
            return self._rng.choice(_WORDS)
        if not isinstance(schema, dict) or depth > _DEEPEST:
            raise UnsupportedSchema(f"Unsupported schema {schema!r}")
        if "$ref" in schema:
            return self._value(self._resolve(schema["$ref"]), depth + 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._rng.choice(schema["enum"])
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self._value(self._flattest(schema[union]), depth + 1)
        if "allOf" in schema:
            merged: dict[str, Any] = {}
            for part in schema["allOf"]:
                merged.update(part)
            return self._value(merged, depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = kind[0]
        if kind not in _TYPES:
            raise UnsupportedSchema(f'Unsupported type "{kind}"')
        return self._typed(kind, schema, depth)

    @staticmethod
    def _flattest(choices: list[Any]) -> Any:
        """A branch that does not refer further, so that recursive schemas end."""
        return next((one for one in choices if "$ref" not in json.dumps(one)), choices[0])

    def _resolve(self, reference: str) -> Any:
        target = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            target = target[part.replace("~1", "/").replace("~0", "~")]
        return target

    def _typed(self, kind: str, schema: dict[str, Any], depth: int) -> Any:
        match kind:
            case "object":
                properties = schema.get("properties", {})
                return {name: self._value(one, depth + 1) for name, one in properties.items()}
            case "array":
                count = max(1, schema.get("minItems", 1))
                count = min(count, schema.get("maxItems", count))
                item = schema.get("items", True)
                return [self._value(item, depth + 1) for _ in range(count)]
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return self._number(kind, schema)
            case "boolean":
                return self._rng.random() < 0.5
            case _:
                return None

    def _string(self, schema: dict[str, Any]) -> str:
        if "format" in schema and schema["format"] in _FORMATS:
            return _FORMATS[schema["format"]]
        text = self._rng.choice(_WORDS)
        while len(text) < schema.get("minLength", 0):
            text += " " + self._rng.choice(_WORDS)
        return text[: schema.get("maxLength", len(text))]

    def _number(self, kind: str, schema: dict[str, Any]) -> float | int:
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        if "exclusiveMinimum" not in schema and "minimum" not in schema:
            low = min(1, schema.get("maximum", 1))
        high = schema.get("maximum", schema.get("exclusiveMaximum", low + 9))
        if kind == "integer":
            return self._rng.randint(
                int(low), max(int(low), int(high) - ("exclusiveMaximum" in schema))
            )
        return round(self._rng.uniform(float(low), float(high)), 2)
