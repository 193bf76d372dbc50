from __future__ import annotations

import pytest

from inferd.cli.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("45s", 45),
        ("10m", 600),
        ("12h", 43_200),
        (" 30D ", 2_592_000),
        ("2w", 1_209_600),
    ],
)
def test_durations_as_people_type_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "10", "m", "-1d", "1.5h", "1 d", "1y", "1d2h", "9" * 10 + "s"]
)
def test_anything_else_says_what_is_wanted(text: str) -> None:
    with pytest.raises(ValueError, match="like 30d"):
        parse_duration(text)
