"""What a client sees of a worker's stream: OpenAI's shape, whatever the engine sent."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.errors import InferdError, UpstreamError, WorkerUnreachable
from inferd.inference import Endpoint, InferenceRequest, Priority, Usage
from inferd.upstream.chat_relay import ChatRelay
from inferd.upstream.frames import frames_of, payload_of
from inferd.upstream.relay import DONE

RID = "chatcmpl-" + "0" * 32
USAGE = {
    "prompt_tokens": 40,
    "total_tokens": 48,
    "completion_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 39},
    "reasoning_tokens": 0,
    "completion_tokens_details": None,
}


def request(*, include_usage: bool = False, choices: int = 1) -> InferenceRequest:
    return InferenceRequest(
        request_id="req_1",
        team="search",
        key_id="k",
        endpoint=Endpoint.CHAT,
        model="chat",
        pool="chat@1",
        body={},
        prompt_bytes=10,
        prompt_tokens_estimated=12,
        output_tokens_max=16,
        output_tokens_given=True,
        choices=choices,
        stream=True,
        include_usage=include_usage,
        priority=Priority.INTERACTIVE,
        deadline=1e9,
    )


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    choice = {
        "index": index,
        "delta": {"reasoning_content": None, **delta},
        "logprobs": None,
        "finish_reason": finish,
        "matched_stop": None,
    }
    head = {"id": RID, "object": "chat.completion.chunk", "created": 7, "model": "chat"}
    return b"data: " + orjson.dumps({**head, "choices": [choice], **more}) + b"\n\n"


def usage_chunk(usage: dict[str, Any] | None = None) -> bytes:
    head = {"id": RID, "object": "chat.completion.chunk", "created": 7, "model": "chat"}
    return b"data: " + orjson.dumps({**head, "choices": [], "usage": usage or USAGE}) + b"\n\n"


OPENING = chunk({"role": "assistant", "content": ""})
HELLO = OPENING + chunk({"content": "Hel"}) + chunk({"content": "lo 🙂"}) + chunk({}, "stop")
WHOLE = HELLO + usage_chunk() + DONE


def events(out: bytes) -> list[Any]:
    payloads = [payload_of(frame) for frame in frames_of(out)]
    found = [payload if payload == b"[DONE]" else orjson.loads(payload) for payload in payloads]
    for event in found:
        for choice in event["choices"] if isinstance(event, dict) else ():
            # The engine's null extras stay in what passes through, and go where we decode.
            assert choice.pop("matched_stop", None) is None
    return found


def relayed(stream: bytes, *, include_usage: bool = False, choices: int = 1) -> list[Any]:
    relay = ChatRelay(request(include_usage=include_usage, choices=choices), RID)
    return events(relay.feed(stream) + relay.end())


def test_a_stream_opens_once_carries_the_text_finishes_once_and_ends_with_done() -> None:
    *chunks, last = relayed(WHOLE)
    assert last == b"[DONE]"
    deltas = [event["choices"][0]["delta"] for event in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert [delta.get("role") for delta in deltas[1:]] == [None] * (len(deltas) - 1)
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hello 🙂"
    finishes = [event["choices"][0]["finish_reason"] for event in chunks]
    assert finishes == [None, None, None, "stop"]
    assert not any("usage" in event for event in chunks)


def test_usage_that_was_asked_for_is_the_last_chunk_and_null_in_all_others() -> None:
    *chunks, usage, last = relayed(WHOLE, include_usage=True)
    assert last == b"[DONE]"
    assert [event["usage"] for event in chunks] == [None] * len(chunks)
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == 40
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 39
    assert usage["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


@given(st.lists(st.integers(0, 5_000), max_size=40), st.booleans(), st.booleans())
def test_every_cut_of_the_bytes_gives_the_client_the_same_bytes(
    cuts: list[int], include_usage: bool, crlf: bool
) -> None:
    stream = WHOLE.replace(b"\n", b"\r\n") if crlf else WHOLE
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    relay = ChatRelay(request(include_usage=include_usage), RID)
    out = b"".join(relay.feed(stream[start:end]) for start, end in pairwise(edges))
    whole = ChatRelay(request(include_usage=include_usage), RID)
    assert events(out + relay.end()) == events(whole.feed(WHOLE) + whole.end())
    assert relay.bill() == Usage(40, 39, 8)


def pushed_or_fed(relay: ChatRelay, data: bytes) -> bytes:
    """As a stream is relayed: what needs no look is passed through, the rest is fed."""
    out = relay.pass_through(data)
    return relay.feed(data) if out is None else out


@given(
    st.lists(st.sampled_from(["a", 'q"uote', "\\n", "🙂", "data: x\n\n", "[DONE]"]), max_size=12),
    st.lists(st.integers(0, 8_000), max_size=40),
    st.booleans(),
)
def test_what_is_passed_through_is_what_would_have_been_fed(
    texts: list[str], cuts: list[int], include_usage: bool
) -> None:
    rare = chunk({"content": "x"}, extra=1) + chunk({"tool_calls": None, "content": "y"})
    said = b"".join(chunk({"content": text}) for text in texts) + rare + chunk({"content": "z"})
    stream = OPENING + said + chunk({}, "stop") + usage_chunk() + DONE
    edges = sorted({0, len(OPENING), len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    pushed = ChatRelay(request(include_usage=include_usage), RID)
    out = b"".join(pushed_or_fed(pushed, stream[start:end]) for start, end in pairwise(edges))
    fed = ChatRelay(request(include_usage=include_usage), RID)
    assert events(out + pushed.end()) == events(fed.feed(stream) + fed.end())
    assert pushed.events == fed.events
    assert pushed.bill() == fed.bill()


def test_nothing_is_passed_through_that_must_be_understood() -> None:
    relay = ChatRelay(request(), RID)
    hello = chunk({"content": "Hello"})
    assert relay.pass_through(hello) is None  # the client has not been told the role
    relay.feed(OPENING)
    assert relay.pass_through(hello) == hello
    assert relay.pass_through(hello + hello) == hello + hello
    tool = chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]})
    for withheld in (tool, chunk({}, "stop"), usage_chunk(), DONE, hello[:-1], b"data: {}\n\n"):
        assert relay.pass_through(withheld) is None
    relay.feed(hello[:20])
    assert relay.pass_through(hello[20:]) is None  # the beginning of its event waits
    assert relay.feed(hello[20:]) == hello


def test_the_bill_is_the_engines_also_when_the_client_did_not_ask() -> None:
    relay = ChatRelay(request(), RID)
    relay.feed(WHOLE)
    assert relay.bill() == Usage(prompt_tokens=40, cached_tokens=39, completion_tokens=8)


def test_usage_in_the_same_read_as_done_is_not_lost() -> None:
    relay = ChatRelay(request(), RID)
    relay.feed(HELLO)
    relay.feed(usage_chunk() + DONE)
    assert relay.bill().prompt_tokens == 40


@pytest.mark.parametrize("counts", [None, {"prompt_tokens": 0, "completion_tokens": 0}])
def test_usage_missing_or_zero_is_counted_and_marked_estimated(counts: Any) -> None:
    relay = ChatRelay(request(), RID)
    relay.feed(HELLO + (usage_chunk(counts) if counts else b"") + DONE)
    bill = relay.bill()
    assert bill.estimated
    assert bill.completion_tokens == 2 + 3  # by its bytes, for an event held two words


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_stream_that_ends_early_is_never_passed_off_as_whole(kept: int) -> None:
    relay = ChatRelay(request(), RID)
    out = relay.feed(b"".join(frames_of(WHOLE)[:kept]))
    with pytest.raises(WorkerUnreachable):
        relay.end()
    assert b"[DONE]" not in out


def test_done_without_a_finish_reason_is_a_failure() -> None:
    relay = ChatRelay(request(), RID)
    relay.feed(OPENING + chunk({"content": "Hel"}))
    with pytest.raises(UpstreamError):
        relay.feed(DONE)


def test_a_worker_that_omits_done_but_finished_is_complete() -> None:
    *_, last = relayed(HELLO)
    assert last == b"[DONE]"


def test_the_engines_abort_is_an_error_not_a_finish_reason() -> None:
    relay = ChatRelay(request(), RID)
    relay.feed(OPENING + chunk({"content": "Hel"}))
    with pytest.raises(WorkerUnreachable):
        relay.feed(chunk({}, "abort") + usage_chunk() + DONE)


def test_an_aborted_answer_that_is_read_on_still_yields_the_exact_bill() -> None:
    relay = ChatRelay(request(), RID)
    relay.feed(OPENING + chunk({"content": "Hel"}))
    relay.client_left()
    relay.feed(chunk({}, "abort") + usage_chunk() + DONE)
    assert relay.bill() == Usage(40, 39, 8)


def test_an_error_inside_a_200_becomes_a_typed_error() -> None:
    relay = ChatRelay(request(), RID)
    body = {"error": {"object": "error", "message": "The request queue is full.", "code": 503}}
    with pytest.raises(InferdError) as caught:
        relay.feed(b"data: " + orjson.dumps(body) + b"\n\n" + DONE)
    assert caught.value.code == "overloaded"


def test_text_that_looks_like_a_key_stays_text() -> None:
    hostile = '"usage":{"x":1},"finish_reason":"stop","error":{"a":1} [DONE]'
    *chunks, _ = relayed(
        OPENING + chunk({"content": hostile}) + chunk({}, "stop") + usage_chunk() + DONE
    )
    assert chunks[1]["choices"][0]["delta"]["content"] == hostile


def test_choices_open_in_index_order_whoever_speaks_first() -> None:
    role = {"role": "assistant", "content": ""}
    stream = b"".join(
        [
            chunk(role, index=1),
            chunk({"content": "b"}, index=1),
            chunk(role, index=0),
            chunk({"content": "a"}, index=0),
            chunk({}, "stop", index=1),
            chunk({}, "length", index=0),
            usage_chunk(),
            DONE,
        ]
    )
    *chunks, _ = relayed(stream, choices=2)
    roles = [
        event["choices"][0]["index"] for event in chunks if event["choices"][0]["delta"].get("role")
    ]
    assert roles == [0, 1]
    assert chunks[0]["choices"][0]["index"] == 0
    assert {event["id"] for event in chunks} == {RID}


def test_a_plain_servers_ids_models_and_spacing_are_made_ours() -> None:
    def plain(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        event = {"id": "xyz", "model": "/models/a.gguf", "created": 7, "choices": [choice]}
        return b"data: " + json.dumps(event).encode() + b"\n\n"

    stream = (
        plain({"role": "assistant", "content": "Hel"})
        + plain({"content": "lo"})
        + plain({}, "stop")
        + DONE
    )
    *chunks, _ = relayed(stream)
    assert {(event["id"], event["model"]) for event in chunks} == {(RID, "chat")}
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in chunks)
    assert text == "Hello"


def test_tool_calls_keep_id_and_name_once() -> None:
    def call(**function: Any) -> dict[str, Any]:
        tool = {"index": 0, "type": "function", "function": function}
        return {"role": None, "content": None, "tool_calls": [tool]}

    first = call(name="f", arguments="")
    first["tool_calls"][0]["id"] = "call_1"
    later = call(name=None, arguments='{"a":1}')
    later["tool_calls"][0]["id"] = None
    stream = (
        OPENING
        + chunk(first, usage=None)
        + chunk(later, usage=None)
        + chunk({}, "tool_calls")
        + usage_chunk()
        + DONE
    )
    for include_usage in (False, True):
        chunks = [e for e in relayed(stream, include_usage=include_usage) if e != b"[DONE]"]
        calls = [
            part
            for event in chunks
            for choice in event["choices"]
            for part in choice["delta"].get("tool_calls") or ()
        ]
        assert [part.get("id") for part in calls] == ["call_1", None]
        assert "".join(part["function"]["arguments"] for part in calls) == '{"a":1}'
        if include_usage:
            assert all(event["usage"] is None for event in chunks[:-1])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["index", "delta", "content", "tool_calls", "x"]), inner)
    ),
    max_leaves=8,
)
EVENTS = st.dictionaries(
    st.sampled_from(["id", "model", "created", "choices", "usage", "error", "object"]), JSON
)
COUNTS = st.dictionaries(
    st.sampled_from(
        ["prompt_tokens", "completion_tokens", "reasoning_tokens", "prompt_tokens_details"]
    ),
    JSON | st.just({"cached_tokens": 10**9}),
)


@given(st.lists(EVENTS | COUNTS.map(lambda counts: {"choices": [], "usage": counts}), max_size=4))
def test_events_of_any_shape_are_relayed_or_refused_and_the_bill_adds_up(
    events: list[dict[str, Any]],
) -> None:
    relay = ChatRelay(request(include_usage=True), RID)
    try:
        relay.feed(OPENING)
        for event in events:
            relay.feed(b"data: " + json.dumps(event).encode("utf-8", "replace") + b"\n\n")
        relay.feed(chunk({}, "stop") + DONE)
    except InferdError:
        pass
    bill = relay.bill()
    assert 0 <= bill.cached_tokens <= bill.prompt_tokens
    assert 0 <= bill.reasoning_tokens <= bill.completion_tokens


def test_a_frame_that_is_none_is_not_passed_on_although_frames_are_not_decoded() -> None:
    for garbage in (b'data: {"id": "x", "choices": [\n\n', b"data: <html>\n\n"):
        relay = ChatRelay(request(), RID)
        relay.feed(OPENING + chunk({"content": "Hel"}))
        assert relay.feed(b": ping\n\n") == b""
        with pytest.raises(UpstreamError):
            relay.feed(chunk({"content": "lo"}) + garbage)
        assert relay.events == 2


def test_usage_behind_an_error_is_not_lost() -> None:
    relay = ChatRelay(request(), RID)
    error = b'data: {"error":{"code":500,"message":"CUDA"}}\n\n'
    with pytest.raises(UpstreamError):
        relay.feed(HELLO + error + usage_chunk() + DONE)
    assert relay.bill() == Usage(40, 39, 8)


def test_an_error_event_is_wrapped_and_carries_the_usage_so_far() -> None:
    relay = ChatRelay(request(), RID)
    relay.feed(HELLO + usage_chunk())
    event = relay.error_event({"message": "lost", "code": None})
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    error = orjson.loads(event.removeprefix(b"data: "))["error"]
    assert error["message"] == "lost"
    assert error["usage"]["total_tokens"] == 48
    assert error["usage"]["prompt_tokens_details"]["cached_tokens"] == 39
