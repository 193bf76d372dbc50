"""The 300 schemas: drawn alike each time, and each either passes the gate or is refused by name."""

from __future__ import annotations

from collections import Counter

from inferd.api.json_schema import SchemaChecker
from inferd.errors import InvalidField
from tests.conformance.schemas import Case, cases, fault, refusal, table

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def verdict(case: Case) -> str | None:
    """The keyword it is refused for; None: it is let through."""
    checker = SchemaChecker("response_format", "invalid_json_schema")
    try:
        checker.check(case.schema)
        checker.check_enforceable(case.schema)
    except InvalidField as error:
        return refusal(error.message) or f"{case.name} names nothing: {error.message}"
    return None


def test_each_is_let_through_or_refused_by_name() -> None:
    found = {case: verdict(case) for case in cases()}
    assert len(found) == len({case.name for case in found}) == 300
    assert cases() == list(found)
    assert not [told for told in found.values() if told and "names nothing" in told]
    through = Counter(case.source for case, keyword in found.items() if keyword is None)
    assert through["bfcl"] >= 190
    assert through["suite"] >= 20
    assert {"not", "if", "contains"} & {keyword for keyword in found.values() if keyword}


def test_an_answer_is_held_against_its_schema() -> None:
    assert fault(OBJECT, '{"a":1}') is None
    assert fault(OBJECT, '{"a":"1"}')
    assert fault(OBJECT, '{"a":1')


def test_the_table_counts_by_source() -> None:
    told = table(
        {
            Case("a", "bfcl", OBJECT): ("honoured", "stop"),
            Case("b", "bfcl", OBJECT): ("cut", "length"),
            Case("c", "suite", OBJECT): ("refused", "not"),
        }
    )
    assert "(BFCL) | 1 | 1 | 0 | 0 |" in told
    assert "suite | 0 | 0 | 1 | 0 |" in told
    assert "Refused for: `not` 1." in told
