"""Values as a person reads them."""

from __future__ import annotations

import pytest

from inferd.dashboard import view


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "-"),
        (0.0384, "38 ms"),
        (2.414, "2.41 s"),
        (200, "3 min 20 s"),
        (18_600, "5 h 10 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations(value: float | None, said: str) -> None:
    assert view.seconds(value) == said


def test_counts_shares_and_moments() -> None:
    assert view.count(1_234_567) == "1 234 567"
    assert view.count(None) == "-"
    assert view.share(0.42) == "42 %"
    assert view.moment(1_796_073_379_000_000) == "2026-11-30 21:16:19"
    assert view.moment_s(None) == "-"


def test_values_of_a_row() -> None:
    assert [view.plain(value) for value in (None, "", True, 0, 0.12345, "x")] == [
        "-",
        "-",
        "yes",
        "0",
        "0.1235",
        "x",
    ]
