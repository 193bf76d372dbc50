"""Recorded streams for people. Goal: every piece of text is there, joined, and nothing hides."""

from __future__ import annotations

import json

from inferd.cli.stream_text import joined


def stream(*events: dict[str, object]) -> str:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


def delta(index: int = 0, **told: object) -> dict[str, object]:
    return {"choices": [{"index": index, "delta": told}]}


def test_pieces_are_joined_by_choice_and_kind() -> None:
    call = {"index": 0, "function": {"name": "look", "arguments": '{"a"'}}
    answer = stream(
        delta(content=""),
        delta(reasoning_content="hm"),
        delta(content="He"),
        delta(1, content="Two"),
        delta(content="llo", tool_calls=[call]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]),
        {"choices": [], "usage": {"prompt_tokens": 3}},
    )
    assert joined(answer).splitlines() == [
        "reasoning_content: hm",
        "content: Hello",
        "content of choice 1: Two",
        'tool call 0: look{"a":1}',
    ]


def test_other_endpoints_and_what_went_wrong() -> None:
    assert joined(stream({"choices": [{"index": 0, "text": "a"}]})) == "text: a"
    told = 'event: x\ndata: {"type":"response.output_text.delta","delta":"ab"}\n\n'
    assert joined(told) == "response.output_text: ab"
    assert joined(stream({"error": {"code": "x"}})) == '{"error": {"code": "x"}}'
    assert joined('data: {"choices": [{"ind') == 'data: {"choices": [{"ind'
    assert joined('{"id": "a whole answer"}') == '{"id": "a whole answer"}'
