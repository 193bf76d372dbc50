"""`response_format`: which shape the answer must have, checked before a worker sees it."""

from __future__ import annotations

from typing import Final

from inferd.api.fields import (
    as_name,
    as_object,
    as_string,
    boolean,
    missing,
    not_supported_value,
    only_keys,
)
from inferd.api.json_schema import SchemaChecker

_TYPES: Final = ("text", "json_object", "json_schema")
_TYPE_ONLY: Final = frozenset({"type"})
_WITH_SCHEMA: Final = frozenset({"type", "json_schema"})
_SCHEMA_KEYS: Final = frozenset({"name", "description", "schema", "strict"})
_PATH: Final = "response_format"


def check_response_format(value: object, path: str) -> dict[str, object] | None:
    """What the engine gets; None for plain text, its default.

    Raises:
        InvalidField: an unknown type, or a schema that is none, too large or too deep.
    """
    given = as_object(value, path)
    if "type" not in given:
        raise missing(f"{path}.type")
    kind = as_string(given["type"], f"{path}.type")
    if kind == "json_schema":
        only_keys(given, path, _WITH_SCHEMA)
        if given.get("json_schema") is None:
            raise missing(f"{path}.json_schema")
        return {"type": kind, "json_schema": _json_schema(given["json_schema"])}
    if kind not in _TYPES:
        raise not_supported_value(f"{path}.type", kind, _TYPES)
    only_keys(given, path, _TYPE_ONLY)
    return {"type": kind} if kind == "json_object" else None


def _json_schema(value: object) -> dict[str, object]:
    path = f"{_PATH}.json_schema"
    given = as_object(value, path)
    only_keys(given, path, _SCHEMA_KEYS)
    for key in ("name", "schema"):
        # Without a schema the answer could be anything: refused rather than left unconstrained.
        if given.get(key) is None:
            raise missing(f"{path}.{key}")
    schema = as_object(given["schema"], f"{path}.schema")
    checker = SchemaChecker(_PATH, "invalid_json_schema")
    checker.check(schema)
    checker.check_enforceable(schema)
    checked: dict[str, object] = {"name": as_name(given["name"], f"{path}.name"), "schema": schema}
    if given.get("description") is not None:
        checked["description"] = as_string(given["description"], f"{path}.description")
    if given.get("strict") is not None:
        checked["strict"] = boolean(given["strict"], f"{path}.strict")
    return checked
