"""docs/api.md and docs/errors.md say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferd.api import parameters

DOCS = Path(__file__).parents[3] / "docs"
MARK = re.compile(r"`([^`\n]+)`")


def first_column(heading: str) -> set[str]:
    """What stands in code marks in the first column of the table under a heading."""
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    table = text.split(heading, 1)[1].split("\n|", 1)[1].split("\n\n", 1)[0]
    cells = [line.strip("|").split("|")[0] for line in table.splitlines()]
    return {mark for cell in cells for mark in MARK.findall(cell)}


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("**Accepted, without effect:**", set(parameters.ACCEPTED)),
        ("**Refused** with", set(parameters.REFUSED)),
    ],
)
def test_parameters_without_effect_are_in_their_table(heading: str, names: set[str]) -> None:
    assert first_column(heading) == names


def test_honoured_parameters_are_in_one_of_the_two_tables() -> None:
    documented = first_column("**Honoured**:") | first_column("**Honoured, the engine's own**")
    assert documented == {"model", *parameters.HONOURED, *parameters.GATEWAY}


@pytest.mark.parametrize(
    "code",
    # Put together or passed on, so not found where the others are.
    [
        "decimal_above_max_value",
        "decimal_below_min_value",
        "integer_above_max_value",
        "integer_below_min_value",
        "invalid_config",
        "invalid_json_schema",
        "invalid_function_parameters",
        "provision_error",
        "storage_error",
    ],
)
def test_composed_codes_are_documented(code: str) -> None:
    assert f"`{code}`" in (DOCS / "errors.md").read_text(encoding="utf-8")
