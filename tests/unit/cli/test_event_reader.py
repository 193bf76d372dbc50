from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.cli.event_reader import EVENT_BYTES_MAX, EventReader
from inferd.errors import UpstreamError

STREAM = (
    ': keepalive\n\ndata: {"a":"é"}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\n'
    "id: 1\r\rdata\r\rdata: [DONE]\n\ndata: unfinished"
).encode()
EVENTS = ['{"a":"é"}', "two\nlines", "", "[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    reader = EventReader()
    edges = [0, *sorted(cuts), len(STREAM)]
    events = [
        event
        for start, end in itertools.pairwise(edges)
        for event in reader.feed(STREAM[start:end])
    ]
    assert events == EVENTS


def test_an_event_without_an_end_is_refused() -> None:
    reader = EventReader()
    half = b"data: " + b"x" * (EVENT_BYTES_MAX // 2)
    reader.feed(half + b"\n")
    with pytest.raises(UpstreamError, match="larger than"):
        reader.feed(half)
