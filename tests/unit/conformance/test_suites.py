"""What suites say is read as they say it, and a suite that says nothing has failed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.suites import (
    Score,
    probe_score,
    pytest_score,
    schemathesis_score,
    unittest_score,
)

UNITTEST = """\
test_contract (kits.TestContract.test_contract) ... ok
test_json (kits.TestJson.test_json) ... FAIL
test_stop (kits.TestStop.test_stop)
With a docstring. ... ok
"""


@pytest.mark.parametrize(
    ("read", "output", "score"),
    [
        (pytest_score, "x\n106 passed, 120 deselected, 9 xfailed in 5.40s", Score(106, 0, 9)),
        (
            pytest_score,
            "35 passed, 11 skipped, 7 xfailed, 2 xpassed in 5s",
            Score(37, 0, 7, 11),
        ),
        (pytest_score, "3 failed, 1 passed, 1 error in 2s", Score(1, 4)),
        (pytest_score, "", Score(0, 1)),
        (probe_score, "ok a\nnot ok b: why\nok c", Score(2, 1)),
        (probe_score, "Traceback", Score(0, 1)),
        (unittest_score, UNITTEST, Score(2, 1)),
        (unittest_score, "ImportError", Score(0, 1)),
        (schemathesis_score, "  4095 generated, 4095 passed, 16 skipped", Score(4095, 0)),
        (
            schemathesis_score,
            "  120 generated, 3 found 2 unique failures, 117 passed",
            Score(118, 2),
        ),
        (schemathesis_score, "Failed to load schema", Score(0, 1)),
    ],
)
def test_a_score(read: Callable[[str], Score], output: str, score: Score) -> None:
    assert read(output) == score
