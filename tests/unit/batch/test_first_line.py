"""What a file's beginning tells. Goal: the same verdict however its bytes are cut."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.batch.first_line import CHARS_LOOKED_AT, FirstLine


def verdict(*pieces: bytes) -> str | None:
    first = FirstLine()
    for piece in pieces:
        first.take(piece)
    first.end()
    return first.refused


@pytest.mark.parametrize(
    "data",
    [b"{}", b"{}\n", b'{"a": 1}\r\nnot json', b"\xef\xbb\xbf{}\n", b"\n\r\n {}\n", b"{ }   "],
)
def test_a_batch_is_taken(data: bytes) -> None:
    assert verdict(data) is None


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b" \t\r\n"])
def test_nothing_is_told_as_empty(data: bytes) -> None:
    assert verdict(data) == "The file is empty."


@pytest.mark.parametrize(
    "data", [b"PK\x03\x04", b"[]", b"1\n{}", b'{"a":"\xff"}', b"{", b"\x1f\x8b"]
)
def test_what_is_no_object_is_refused(data: bytes) -> None:
    assert verdict(data) == "The first line is not a JSON object in UTF-8."


def test_a_very_long_line_is_left_to_validation() -> None:
    assert verdict(b'{"a": "' + b"x" * CHARS_LOOKED_AT, b"broken") is None


def test_a_verdict_comes_with_the_first_line_break() -> None:
    first = FirstLine()
    first.take(b"nonsense")
    assert first.refused is None
    first.take(b"\n")
    assert first.refused is not None


@given(
    st.binary(max_size=40) | st.builds(orjson.dumps, st.dictionaries(st.text(), st.text())),
    st.integers(0, 40),
)
def test_cuts_change_nothing(data: bytes, cut: int) -> None:
    assert verdict(data[:cut], data[cut:]) == verdict(data)
