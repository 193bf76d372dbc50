"""What is said of an answer as a whole, streamed or not, and what it costs without usage."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from inferd.inference import Usage
from inferd.upstream.answer import chat_answer
from inferd.upstream.chat_relay import ChatRelay
from inferd.upstream.relay import DONE
from tests.unit.upstream.test_relay import (
    OPENING,
    RID,
    USAGE,
    WHOLE,
    chunk,
    events,
    request,
)


@pytest.mark.parametrize("text", ["one two three four", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35" * 6])
def test_events_of_several_tokens_are_measured_by_their_text(text: str) -> None:
    def plain(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"

    asked = replace(request(), prompt_bytes=40, prompt_tokens_estimated=10, output_tokens_max=100)
    for words, expected in ((text, len((text * 3).encode()) / 4), ("word", 3)):
        relay = ChatRelay(asked, RID)
        relay.feed(plain({"content": words}) * 3 + plain({}, "stop") + DONE)
        assert relay.bill() == Usage(10, 0, math.ceil(expected), estimated=True)
    relay = ChatRelay(replace(asked, output_tokens_max=5), RID)
    relay.feed(plain({"content": text}) * 3 + plain({}, "stop") + DONE)
    assert relay.bill().completion_tokens == 5, "no more than the engine was allowed"


def test_what_is_true_of_the_whole_answer_is_told_where_it_opens_ends_and_is_counted() -> None:
    relay = ChatRelay(replace(request(include_usage=True), service_tier="flex"), RID)
    opening, *texts, end, usage, _ = events(relay.feed(WHOLE) + relay.end())
    assert len(texts) == 2
    for chunk_of_ours in (opening, end, usage):
        assert chunk_of_ours["service_tier"] == "flex"
        assert chunk_of_ours["system_fingerprint"] is None


@pytest.mark.parametrize(
    ("choice", "content", "reason"),
    [
        ("auto", "", "tool_calls"),
        ("required", None, "tool_calls"),
        ({"type": "function", "function": {"name": "f"}}, None, "stop"),
    ],
)
def test_a_forced_call_has_no_content_and_a_named_one_just_stops(
    choice: object, content: str | None, reason: str
) -> None:
    asked = replace(request(), body={"tool_choice": choice})
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f"}}
    relay = ChatRelay(asked, RID)
    told = events(
        relay.feed(OPENING + chunk({"tool_calls": [call]}) + chunk({}, "tool_calls") + DONE)
    )
    assert told[0]["choices"][0]["delta"]["content"] == content
    assert told[-2]["choices"][0]["finish_reason"] == reason
    message = {"content": "", "tool_calls": [call]}
    engine = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": USAGE}
    whole = chat_answer(engine, asked, RID)[0]["choices"][0]
    assert (whole["message"]["content"], whole["finish_reason"]) == (None, reason)


def test_logprobs_have_both_their_keys() -> None:
    message = {"content": "a"}
    choice = {"message": message, "finish_reason": "stop", "logprobs": {"content": []}}
    body, _ = chat_answer({"choices": [choice], "usage": USAGE}, request(), RID)
    assert body["choices"][0]["logprobs"] == {"content": [], "refusal": None}


def test_an_answer_to_token_ids_is_measured_by_its_text_too() -> None:
    asked = replace(request(), prompt_bytes=0, prompt_tokens_estimated=900, output_tokens_max=400)
    engine = {"choices": [{"message": {"content": "x" * 70}, "finish_reason": "stop"}]}
    assert chat_answer(engine, asked, RID)[1] == Usage(900, 0, 20, estimated=True)
