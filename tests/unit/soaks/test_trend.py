"""Whether memory grows, by a line through what was seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.soaks.trend import second_half, slope

NUMBERS = st.floats(min_value=-1_000.0, max_value=1_000.0)


@given(per_x=NUMBERS, at_zero=NUMBERS, count=st.integers(min_value=2, max_value=200))
def test_the_slope_of_a_straight_line_is_found(per_x: float, at_zero: float, count: int) -> None:
    line = [(float(x), at_zero + per_x * x) for x in range(count)]
    assert slope(line) == pytest.approx(per_x, abs=1e-6)


@given(heights=st.lists(NUMBERS, min_size=2, max_size=50))
def test_what_goes_up_and_down_alike_does_not_grow(heights: list[float]) -> None:
    there_and_back = [*heights, *reversed(heights)]
    points = [(float(x), y) for x, y in enumerate(there_and_back)]
    assert slope(points) == pytest.approx(0.0, abs=1e-6)


def test_too_few_points_and_points_of_one_moment_have_no_slope() -> None:
    assert slope([]) == 0.0
    assert slope([(1.0, 5.0)]) == 0.0
    assert slope([(1.0, 5.0), (1.0, 7.0)]) == 0.0


def test_what_is_made_once_at_the_start_is_no_growth() -> None:
    points = [(float(x), 10.0 if x < 40 else 90.0) for x in range(100)]
    assert slope(points) > 0.5
    assert slope(second_half(points)) == 0.0
    assert second_half(points)[0] == (50.0, 90.0)
    assert second_half([]) == []
