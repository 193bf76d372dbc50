"""A response as its client sees it: items and events in the order that the SDKs rely on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.errors import InferdError, UpstreamError, WorkerUnreachable
from inferd.inference import Endpoint, InferenceRequest, Priority
from inferd.upstream.frames import frames_of, payload_of
from inferd.upstream.relay import DONE
from inferd.upstream.responses_answer import ResponseRelay, response_answer

RID = "resp_" + "0" * 32
KEYS = st.sampled_from(
    ["content", "reasoning_content", "tool_calls", "function", "id", "index", "name", "logprobs"]
)
USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 39},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


def request(**changes: Any) -> InferenceRequest:
    base = InferenceRequest(
        request_id="req_1",
        team="search",
        key_id="k",
        endpoint=Endpoint.RESPONSES,
        model="chat",
        pool="chat@1",
        body={},
        prompt_bytes=10,
        prompt_tokens_estimated=12,
        output_tokens_max=16,
        output_tokens_given=True,
        choices=1,
        stream=True,
        include_usage=True,
        priority=Priority.INTERACTIVE,
        deadline=1e9,
        echo={"store": False, "tools": []},
    )
    return replace(base, **changes)


def chunk(finish: str | None = None, /, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": RID, "created": 7, "model": "chat", "choices": [choice]}
    return b"data: " + orjson.dumps(head) + b"\n\n"


def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": arguments, **more}}


END = b"data: " + orjson.dumps({"choices": [], "usage": USAGE}) + b"\n\n" + DONE


def streamed(*chunks: bytes, **changes: Any) -> list[dict[str, Any]]:
    relay = ResponseRelay(request(**changes), RID)
    out = b"".join(relay.feed(one) for one in (*chunks, END)) + relay.end()
    events = [orjson.loads(payload_of(frame)) for frame in frames_of(out)]
    for frame, event in zip(frames_of(out), events, strict=True):
        assert frame.startswith(b"event: " + event["type"].encode() + b"\n")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_text_has_every_event_that_the_sdk_waits_for() -> None:
    events = streamed(
        chunk(role="assistant", content=""), chunk(content="He"), chunk(content="y"), chunk("stop")
    )
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    response = events[-1]["response"]
    assert response["output"][0]["content"][0]["text"] == "Hey"
    assert response["usage"] == {
        "input_tokens": 40,
        "input_tokens_details": {"cached_tokens": 39, "cache_write_tokens": 0},
        "output_tokens": 8,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 48,
    }
    assert (response["id"], response["status"], response["store"]) == (RID, "completed", False)


def test_reasoning_text_and_calls_are_items_of_their_own_one_after_another() -> None:
    events = streamed(
        chunk(reasoning_content="hm"),
        chunk(content="So"),
        chunk(tool_calls=[{**call(0, "", name="a"), "id": "call_1"}]),
        chunk(tool_calls=[call(0, '{"x":'), call(0, "1}")]),
        chunk(tool_calls=[{**call(1, "{}", name="b"), "id": "call_2"}]),
        chunk("tool_calls"),
    )
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert output[2]["arguments"] == '{"x":1}'
    assert (output[3]["call_id"], output[3]["name"]) == ("call_2", "b")
    assert len({item["id"] for item in output}) == 4
    done = [e["output_index"] for e in events if e["type"] == "response.output_item.done"]
    assert done == [0, 1, 2, 3]


def test_one_call_is_let_through_if_no_more_are_wanted() -> None:
    first = {**call(0, "{}", name="a"), "id": "call_1"}
    second = {**call(1, "{}", name="b"), "id": "call_2"}
    events = streamed(chunk(tool_calls=[first, second]), chunk("tool_calls"), one_tool_call=True)
    assert [item["name"] for item in events[-1]["response"]["output"]] == ["a"]


def test_an_answer_cut_by_its_limit_is_incomplete() -> None:
    events = streamed(chunk(content="He"), chunk("length"))
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-2]["item"]["status"] == "incomplete"


def test_a_failure_is_told_twice_for_sdks_raise_only_the_wrapped_error() -> None:
    relay = ResponseRelay(request(), RID)
    relay.feed(chunk(content="He"))
    error = {"message": "lost", "type": "server_error", "param": None, "code": None}
    events = [orjson.loads(payload_of(f)) for f in frames_of(relay.error_event(error))]
    assert kinds(events) == ["failed", "error"]
    assert events[0]["response"]["error"] == {"code": "server_error", "message": "lost"}
    assert events[1]["error"]["message"] == events[1]["message"] == "lost"
    unopened = ResponseRelay(request(), RID).error_event(error)
    assert orjson.loads(payload_of(unopened))["error"]["message"] == "lost"


def test_a_whole_response_has_the_same_items() -> None:
    message = {
        "content": "Hey",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "call_1", "function": {"name": "a", "arguments": "{}"}}],
    }
    engine = {
        "created": 7,
        "choices": [{"message": message, "finish_reason": "tool_calls"}],
        "usage": USAGE,
    }
    body, usage = response_answer(engine, request(), RID)
    assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call"]
    assert body["status"] == "completed"
    assert (usage.prompt_tokens, usage.completion_tokens) == (40, 8)


def test_what_is_no_answer_is_the_workers_fault() -> None:
    with pytest.raises(UpstreamError):
        response_answer({"choices": []}, request(), RID)
    with pytest.raises(WorkerUnreachable):
        ResponseRelay(request(), RID).feed(chunk("abort", content="x"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(KEYS, JSON, max_size=4), max_size=3))
def test_events_of_any_shape_are_relayed_or_refused(deltas: list[dict[str, Any]]) -> None:
    relay = ResponseRelay(request(), RID)
    try:
        for delta in deltas:
            relay.feed(chunk(**delta))
            relay.feed(b"data: " + orjson.dumps({"choices": [delta]}) + b"\n\n")
    except InferdError as error:
        relay.error_event({"message": error.message, "code": None, "param": None})
