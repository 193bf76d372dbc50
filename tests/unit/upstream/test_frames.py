"""Any cut of the bytes gives the same frames."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.errors import UpstreamError
from inferd.upstream.frames import FRAME_BYTES_MAX, FrameSplitter, decode, frames_of, payload_of

TEXTS = st.lists(st.text(max_size=40), min_size=1, max_size=12)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(edges)]


@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=30), st.sampled_from(["\n", "\r\n"]))
def test_every_cut_of_the_bytes_gives_the_same_frames(
    texts: list[str], cuts: list[int], line_end: str
) -> None:
    lines = [text.replace("\r", "").replace("\n", "") for text in texts]
    stream = "".join(f"data: {line}{line_end}{line_end}" for line in lines).encode()
    splitter = FrameSplitter()
    blocks = [splitter.feed(piece) for piece in pieces(stream, cuts)]
    frames = frames_of(b"".join(blocks))
    assert frames == [f"data: {line}\n\n".encode() for line in lines]
    assert splitter.tail == b""


def test_a_multi_byte_character_is_never_handed_out_in_halves() -> None:
    stream = 'data: {"x":"สวัสดี 🙂"}\n\n'.encode()
    splitter = FrameSplitter()
    out = b"".join(splitter.feed(bytes([byte])) for byte in stream)
    assert out.decode() == stream.decode()


def test_several_frames_of_one_read_stay_one_block() -> None:
    assert FrameSplitter().feed(b"data: 1\n\ndata: 2\n\n") == b"data: 1\n\ndata: 2\n\n"


def test_an_event_without_end_is_refused_in_bounded_memory() -> None:
    splitter = FrameSplitter()
    with pytest.raises(UpstreamError, match="does not end"):
        splitter.feed(b"data: " + b"x" * FRAME_BYTES_MAX)


@pytest.mark.parametrize(
    ("frame", "payload"),
    [
        (b"data: {}\n\n", b"{}"),
        (b"data:{}\n\n", b"{}"),
        (b": ping\n\n", b""),
        (b"event: x\ndata: {}\nid: 7\n\n", b"{}"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
    ],
)
def test_the_data_of_a_frame(frame: bytes, payload: bytes) -> None:
    assert payload_of(frame) == payload


@pytest.mark.parametrize("payload", [b"{", b"[1]", b"", b'"x"', b"\xff"])
def test_what_is_not_an_object_is_an_error_that_does_not_repeat_it(payload: bytes) -> None:
    with pytest.raises(UpstreamError) as caught:
        decode(payload)
    assert payload.decode(errors="replace") not in caught.value.message or len(payload) < 2
