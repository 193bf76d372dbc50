"""The table in the document: rows are replaced one by one, and stay in order."""

from __future__ import annotations

from tests.conformance.suites import SUITES, Score
from tests.conformance.table import DOCUMENT, HEAD, row, written

PYTHON, NODE = SUITES[:2]
EMPTY = "before\n<!-- rows -->\n<!-- end of rows -->\nafter\n"


def test_a_row_tells_the_pinned_versions() -> None:
    told = row(PYTHON, "fake", Score(106, 0, 9))
    assert told.startswith("| `openai-python` | openai 3.")
    assert told.endswith("| fake | 106 | 0 | 9 | 0 |")


def test_rows_are_put_in_order_whatever_ran_first() -> None:
    real, node = row(PYTHON, "real", Score(1, 0)), row(NODE, "fake", Score(2, 0))
    python = row(PYTHON, "fake", Score(3, 0))
    text = written(EMPTY, {(PYTHON.name, "real"): real}, {})
    text = written(text, {(NODE.name, "fake"): node}, {})
    text = written(text, {(PYTHON.name, "fake"): python}, {})
    rows = "\n".join([*HEAD, python, node, real])
    assert text == f"before\n<!-- rows -->\n{rows}\n<!-- end of rows -->\nafter\n"


def test_a_row_is_replaced_by_a_newer_one() -> None:
    old, new = row(NODE, "fake", Score(1, 1)), row(NODE, "fake", Score(2, 0))
    text = written(written(EMPTY, {(NODE.name, "fake"): old}, {}), {(NODE.name, "fake"): new}, {})
    assert new in text
    assert old not in text


def test_a_suite_may_have_a_table_of_its_own() -> None:
    text = f"{EMPTY}<!-- schemas -->\nold\n<!-- end of schemas -->\nend\n"
    told = written(text, {}, {"schemas": "\n| new |\n"})
    assert told.endswith("<!-- schemas -->\n| new |\n<!-- end of schemas -->\nend\n")


def test_the_document_has_a_row_for_every_suite() -> None:
    text = DOCUMENT.read_text("utf-8")
    for suite in SUITES:
        if "fake" in suite.engines:
            assert f"\n| `{suite.name}` |" in text, suite.name
