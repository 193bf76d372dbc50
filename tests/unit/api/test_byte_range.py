"""Ranges of a download. Goal: the bytes a client asked for, or a clear no."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.api.byte_range import byte_range
from inferd.errors import RangeNotSatisfiable


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (b"bytes=0-0", (0, 1)),
        (b"bytes=2-4", (2, 5)),
        (b"bytes=2-", (2, 10)),
        (b"bytes=2-99", (2, 10)),
        (b"bytes=-3", (7, 10)),
        (b"bytes=-99", (0, 10)),
        (b"Bytes = 1 - 2 ", (1, 3)),
        (None, None),
        (b"bytes=-", None),
        (b"bytes=4-2", None),
        (b"bytes=0-1,3-4", None),
        (b"lines=0-1", None),
        (b"bytes=" + b"9" * 400 + b"-", None),
    ],
)
def test_a_range_of_ten_bytes(asked: bytes | None, expected: tuple[int, int] | None) -> None:
    assert byte_range(asked, 10) == expected


@pytest.mark.parametrize("asked", [b"bytes=10-", b"bytes=10-20", b"bytes=-0"])
def test_behind_the_end(asked: bytes) -> None:
    with pytest.raises(RangeNotSatisfiable) as refused:
        byte_range(asked, 10)
    assert refused.value.size == 10


@given(st.binary(max_size=30), st.integers(1, 100))
def test_any_header_is_survived(asked: bytes, size: int) -> None:
    for value in (asked, b"bytes=" + asked):
        try:
            found = byte_range(value, size)
        except RangeNotSatisfiable:
            continue
        assert found is None or 0 <= found[0] < found[1] <= size
