"""The search for the highest pace or rate that holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.benchmarks.scale.search import TRIES_MAX, highest

LIMITS = st.floats(min_value=1.0, max_value=100_000.0)


@given(limit=LIMITS, start=st.floats(min_value=1.0, max_value=10_000.0))
def test_what_is_found_holds_and_a_little_more_does_not(limit: float, start: float) -> None:
    found = highest(lambda value: value <= limit, start, step=2.0, precision=1.05)
    assert limit / 1.06 <= found <= limit


@given(limit=LIMITS)
def test_the_most_is_never_passed_and_ends_the_search_once_it_holds(limit: float) -> None:
    tried: list[float] = []

    def holds(value: float) -> bool:
        tried.append(value)
        return value <= limit

    found = highest(holds, 10.0, most=50.0)
    assert max(tried) <= 50.0
    assert found == 50.0 or limit < 50.0


def test_one_bad_moment_is_not_believed() -> None:
    tried: list[float] = []

    def holds(value: float) -> bool:
        tried.append(value)
        return value <= 100.0 and len(tried) != 1

    assert highest(holds, 80.0, precision=1.05) == pytest.approx(100.0, rel=0.06)


def test_a_search_for_what_never_holds_ends() -> None:
    tried: list[float] = []

    def holds(value: float) -> bool:
        tried.append(value)
        return False

    assert highest(holds, 1_000.0) == 0.0
    assert len(tried) == 2 * TRIES_MAX
