"""docs/config.md. Goal: its tables have every key with the type, range and default that holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from inferd.config.json_schema import json_schema
from inferd.config.load import parse_config

DOCS = (Path(__file__).parents[3] / "docs" / "config.md").read_text()
SCHEMA = json_schema()
HEADINGS = {
    "Server": "[server]",
    "Engine": "[engine]",
    "Files": "[files]",
    "Logs": "[logs]",
    "Tracing": "[tracing]",
    "Billing": "[billing]",
    "Model": "[[models]]",
    "SamplingDefaults": "[models.defaults]",
    "Targets": "[models.targets]",
    "Queue": "[models.queue]",
    "Version": "[[models.versions]]",
    "EngineOptions": "[models.versions.engine]",
    "Lora": "[models.versions.engine.lora]",
    "Workers": "[models.versions.workers]",
    "Watchdog": "[models.versions.watchdog]",
    "Prices": "[models.versions.prices]",
    "AttachedWorker": "[[models.versions.attached]]",
    "Takes": "[models.versions.takes]",
    "Adapter": "[[models.versions.adapters]]",
    "Split": "[models.versions.split]",
    "Batches": "[batches]",
    "Team": "[[teams]]",
    "LimitsOnModel": "[[teams.limits]]",
    "Budget": "[teams.budget]",
    "Recording": "[teams.recording]",
}


def is_table(field: dict[str, Any]) -> bool:
    return "$ref" in field or "$ref" in field.get("items", {})


def kind(field: dict[str, Any]) -> str:
    if field["type"] == "array":
        return f"{field['items']['type']}s"
    if field["type"] == "object":
        return "table of strings"
    return str(field["type"])


def bounds(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"])
    if "exclusiveMinimum" in field:
        return f"above {field['exclusiveMinimum']:g}, to {field['maximum']:,.12g}"
    if "minimum" in field:
        return f"{field['minimum']:,} to {field['maximum']:,}"
    return f"up to {field['maxItems']}" if "maxItems" in field else ""


def default(field: dict[str, Any], *, required: bool) -> str:
    value = field.get("default")
    if required:
        return "required"
    if value is None:
        return "empty" if field["type"] == "object" else "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, list):
        return "`[]`" if not value else str(value)
    return f"`{value:_}`" if isinstance(value, int) else f"`{value:g}`"


def rows(section: str) -> list[str]:
    """The first four columns of a section's table."""
    definition = SCHEMA["definitions"][section]
    return [
        f"| `{key}` | {kind(field)} | {bounds(field)} "
        f"| {default(field, required=key in definition.get('required', ()))} |"
        for key, field in definition["properties"].items()
        if not is_table(field)
    ]


def part(section: str) -> str:
    """From a section's heading to the next one."""
    heading = f"## `{HEADINGS[section]}`\n"
    assert heading in DOCS
    return DOCS.partition(heading)[2].partition("\n## ")[0]


def test_every_section_is_documented() -> None:
    assert set(HEADINGS) == set(SCHEMA["definitions"])


@pytest.mark.parametrize("section", HEADINGS)
def test_the_tables_are_as_the_schema_is(section: str) -> None:
    table = re.findall(r"^(\| `\w+` \|[^|]*\|[^|]*\|[^|]*\|)", part(section), re.MULTILINE)
    assert table == rows(section)


@pytest.mark.parametrize("section", HEADINGS)
def test_each_section_says_what_a_change_of_it_needs(section: str) -> None:
    mark = SCHEMA["definitions"][section]["reload"]
    assert f"A change: **{mark}**" in part(section)


def test_the_whole_example_of_the_docs_is_right() -> None:
    example = re.findall(r"```toml\n(\[server\].*?)```", DOCS, re.DOTALL)[0]
    assert parse_config(Path("inferd.toml"), example, {}).config.teams[0].name == "search"


def test_every_table_has_an_example_that_holds_only_keys_of_it() -> None:
    for section in HEADINGS:
        properties = SCHEMA["definitions"][section]["properties"]
        found = re.findall(r"```toml\n(.*?)```", part(section), re.DOTALL)
        keys = [key for example in found for key in re.findall(r"^(\w+) =", example, re.MULTILINE)]
        assert keys, section
        assert set(keys) <= set(properties), section
