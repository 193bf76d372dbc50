"""Percentiles are those of what was counted in between."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.dashboard.history import percentile

BOUNDS = (0.1, 0.2, 0.4, 0.8, 1.6, float("inf"))
TIMES = st.lists(st.floats(0.001, 3.0), max_size=60)


def counted(times: list[float]) -> list[tuple[float, float]]:
    each = [0.0] * len(BOUNDS)
    for time in times:
        each[bisect_left(BOUNDS, time)] += 1
    return list(zip(BOUNDS, accumulate(each), strict=True))


def test_nothing_counted_has_no_percentile() -> None:
    assert percentile([], [], 0.5) is None
    assert percentile(counted([0.3]), counted([0.3]), 0.5) is None


def test_it_lies_where_it_should_within_its_bucket() -> None:
    assert percentile([], counted([0.15] * 10), 0.5) == pytest.approx(0.15)
    assert percentile([], counted([5.0] * 10), 0.5) == 1.6  # the last bound that is known


@given(TIMES, TIMES, st.sampled_from([0.5, 0.95]))
def test_it_is_in_the_bucket_of_the_true_one(
    earlier: list[float], later: list[float], share: float
) -> None:
    found = percentile(counted(earlier), counted(earlier + later), share)
    if not later:
        assert found is None
        return
    at = min(len(later) - 1, max(0, -(-int(share * len(later) * 1_000) // 1_000) - 1))
    true = sorted(later)[at]
    upper = BOUNDS[bisect_left(BOUNDS, true)]
    lower = ([0.0, *BOUNDS])[bisect_left(BOUNDS, true)]
    assert found is not None
    assert lower <= found <= max(upper if upper != float("inf") else 1.6, lower)
