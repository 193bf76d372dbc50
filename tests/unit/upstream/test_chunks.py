"""Chunks of a worker's body that pass with their frames: the same events, and no others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferd.upstream.chat_relay import ChatRelay
from inferd.upstream.relay import DONE
from tests.unit.upstream.test_relay import OPENING, RID, chunk, events, request, usage_chunk


def framed(event: bytes) -> bytes:
    """One chunk of an HTTP body."""
    return b"%x\r\n%b\r\n" % (len(event), event)


def unframed(chunk: bytes) -> bytes:
    size, _, rest = chunk.partition(b"\r\n")
    assert len(rest) == int(size, 16) + 2
    assert rest.endswith(b"\r\n")
    return rest[:-2]


@given(
    st.lists(st.sampled_from(["a", 'q"uote', "\\n", "🙂", "data: x\n\n", "[DONE]"]), max_size=12),
    st.booleans(),
)
def test_a_chunk_passes_as_its_event_would(texts: list[str], include_usage: bool) -> None:
    passed = ChatRelay(request(include_usage=include_usage), RID)
    fed = ChatRelay(request(include_usage=include_usage), RID)
    assert passed.feed(OPENING) == fed.feed(OPENING)
    for text in texts:
        event = chunk({"content": text})
        out = passed.pass_chunk(framed(event))
        assert out is not None
        assert events(unframed(out)) == events(fed.feed(event))
    assert (passed.events, passed.bill()) == (fed.events, fed.bill())


def test_no_chunk_passes_that_is_not_one_usual_event() -> None:
    relay = ChatRelay(request(), RID)
    hello = chunk({"content": "Hello"})
    assert relay.pass_chunk(framed(hello)) is None  # the client has not been told the role
    relay.feed(OPENING)
    assert relay.pass_chunk(framed(hello)) == framed(hello)
    whole = framed(hello)
    for other in (
        framed(hello + hello),
        whole + whole,
        whole[:-1],
        whole + b"5",
        b"0" + whole,
        whole.replace(b"\r\n", b";name=value\r\n", 1),
        b"%x\r\n%b\r\n" % (len(hello) - 1, hello),
        framed(chunk({}, "stop")),
        framed(chunk({"tool_calls": [{"index": 0}]})),
        framed(usage_chunk()),
        framed(DONE),
        hello,
        b"",
    ):
        assert relay.pass_chunk(other) is None, other
    assert relay.events == 1
    relay.feed(hello[:20])
    assert relay.pass_chunk(whole) is None  # the beginning of an event waits
    relay.feed(hello[20:])
    assert relay.pass_chunk(whole) == whole
