"""The JSON schema of inferd.toml, which editors complete and check the file with. Pure."""

from __future__ import annotations

from typing import Any

from inferd.config.schema import Config

DRAFT = "http://json-schema.org/draft-07/schema#"
"""The draft that TOML language servers know."""


def json_schema() -> dict[str, Any]:
    """Draft 7: no `null`, since TOML cannot write one, and no titles made of the keys."""
    schema = Config.model_json_schema(ref_template="#/definitions/{model}")
    definitions = schema.pop("$defs")
    plain: dict[str, Any] = _without_null({**schema, "definitions": definitions})
    return {"$schema": DRAFT, **plain, "title": "inferd.toml"}


def _without_null(node: Any) -> Any:  # noqa: ANN401 (any part of a JSON schema)
    if isinstance(node, list):
        return [_without_null(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    node = {
        key: _without_null(value)
        for key, value in node.items()
        if not (key == "default" and value is None)
        and not (key == "title" and isinstance(value, str))
    }
    options = [option for option in node.get("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        del node["anyOf"]
        return {**options[0], **node}
    return node
