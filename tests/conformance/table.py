"""The table of docs/compatibility.md: a row for each suite and engine, replaced run by run."""

from __future__ import annotations

import re

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
_BLOCK = re.compile(r"(?<=<!-- rows -->\n).*?(?=<!-- end of rows -->)", re.DOTALL)
_ROW = re.compile(r"^\| `(?P<suite>[^`]+)` \|.*\| (?P<engine>fake|real) \|", re.MULTILINE)


def row(suite: Suite, engine: str, score: Score) -> str:
    client = ", ".join(f"{package} {version(suite, package)}" for package in suite.shows)
    counts = f"{score.passed} | {score.failed} | {score.excused} | {score.skipped}"
    return f"| `{suite.name}` | {client} | {suite.about} | {engine} | {counts} |"


def table(rows: Rows) -> str:
    """In the order of the suites, the fake engine before the real one."""
    order = [(suite.name, engine) for engine in ("fake", "real") for suite in SUITES]
    return "\n".join([*HEAD, *(rows[key] for key in order if key in rows)]) + "\n"


def written(text: str, rows: Rows) -> str:
    """The document with these rows in the place of older ones of the same suite and engine."""
    found = _BLOCK.search(text)
    assert found, "docs/compatibility.md has lost the marks around its rows"
    known = {(one["suite"], one["engine"]): _whole(one) for one in _ROW.finditer(found[0])}
    return _BLOCK.sub(lambda _: table(known | rows), text)


def _whole(match: re.Match[str]) -> str:
    return match.string[match.start() :].partition("\n")[0]
