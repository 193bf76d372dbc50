"""The table of docs/compatibility.md: a row for each suite and engine, replaced run by run."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.conformance.install import version
from tests.conformance.suites import SUITES, Score, Suite
from tests.fakes.engines import REPOSITORY

Rows = dict[tuple[str, str], str]
"""By suite and engine."""

DOCUMENT = REPOSITORY / "docs" / "compatibility.md"
HEAD = (
    "| suite | client | what it does | engine | passed | failed | excused | skipped |",
    "| --- | --- | --- | --- | --: | --: | --: | --: |",
)
_ROW = re.compile(r"^\| `(?P<suite>[^`]+)` \|.*\| (?P<engine>fake|real) \|", re.MULTILINE)


def row(suite: Suite, engine: str, score: Score) -> str:
    client = ", ".join(f"{package} {version(suite, package)}" for package in suite.shows)
    counts = f"{score.passed} | {score.failed} | {score.excused} | {score.skipped}"
    return f"| `{suite.name}` | {client} | {suite.about} | {engine} | {counts} |"


def table(rows: Rows) -> str:
    """In the order of the suites, the fake engine before the real one."""
    order = [(suite.name, engine) for engine in ("fake", "real") for suite in SUITES]
    return "\n".join([*HEAD, *(rows[key] for key in order if key in rows)]) + "\n"


def written(text: str, rows: Rows, blocks: Mapping[str, str]) -> str:
    """The document with these rows in the place of older ones of the same suite and engine.

    `blocks`: what suites tell beside their row, by the name between its marks.
    """
    _, mark, rest = text.partition("<!-- rows -->\n")
    assert mark, "docs/compatibility.md has lost the mark before its rows"
    old = rest[: rest.index("<!-- end of rows -->")]
    known = {(one["suite"], one["engine"]): _whole(one) for one in _ROW.finditer(old)}
    for name, told in {"rows": table(known | rows), **blocks}.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        if mark:
            after = rest[rest.index(f"<!-- end of {name} -->") :]
            text = f"{before}{mark}{told.strip()}\n{after}"
    return text


def _whole(match: re.Match[str]) -> str:
    return match.string[match.start() :].partition("\n")[0]
