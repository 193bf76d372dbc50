"""Plain completions and embeddings: OpenAI's shape, whatever the engine sent."""

from __future__ import annotations

import base64
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.errors import UpstreamError, WorkerUnreachable
from inferd.inference import Endpoint, InferenceRequest, Priority, Usage
from inferd.upstream.embedding_answer import embedding_answer
from inferd.upstream.frames import frames_of, payload_of
from inferd.upstream.relay import DONE
from inferd.upstream.text_answer import TextRelay, text_answer

CAPTURES = Path(__file__).parents[2] / "data" / "engine_captures"
RID = "cmpl-" + "0" * 32


def request(**changes: Any) -> InferenceRequest:
    base = InferenceRequest(
        request_id="req_1",
        team="search",
        key_id="k",
        endpoint=Endpoint.COMPLETIONS,
        model="writer",
        pool="writer@1",
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
    )
    return replace(base, **changes)


def captured(name: str) -> bytes:
    """The body of a recorded answer; chunks were joined by the recorder."""
    return (CAPTURES / name).read_bytes().partition(b"\r\n\r\n")[2]


def frame(text: str, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish, **more}
    head = {"id": "x", "object": "text_completion", "created": 7, "model": "m"}
    return b"data: " + orjson.dumps({**head, "choices": [choice], "usage": None}) + b"\n\n"


def events(data: bytes) -> list[dict[str, Any]]:
    payloads = [payload_of(one) for one in frames_of(data)]
    return [orjson.loads(one) for one in payloads if one != b"[DONE]"]


def test_a_recorded_answer_becomes_openais() -> None:
    body, usage = text_answer(orjson.loads(captured("completions.http")), request(), RID)
    assert body["choices"] == [
        {"index": 0, "text": " Paris.\n\nThe", "logprobs": None, "finish_reason": "length"}
    ]
    assert (body["id"], body["object"], body["model"]) == (RID, "text_completion", "writer")
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (5, 1, 5)


@given(size=st.integers(1, 64))
def test_a_recorded_stream_is_the_same_however_it_is_cut(size: int) -> None:
    data = captured("completions_stream.http")
    relay = TextRelay(request(), RID)
    out = b"".join(relay.feed(data[at : at + size]) for at in range(0, len(data), size))
    told = events(out + relay.end())
    assert [one["choices"][0]["text"] for one in told[:-1]] == [" Paris", ".", "\n"]
    assert [one["choices"][0]["finish_reason"] for one in told[:-1]] == [None, None, "length"]
    assert told[-1]["choices"] == []
    assert told[-1]["usage"]["completion_tokens"] == 3
    assert {one["id"] for one in told} == {RID}
    assert "matched_stop" not in orjson.dumps(told).decode()
    assert relay.bill() == Usage(prompt_tokens=5, cached_tokens=4, completion_tokens=3)


def test_offsets_are_counted_in_the_text_of_each_choice_across_chunks() -> None:
    def logs(*tokens: str) -> dict[str, Any]:
        count = len(tokens)
        return {
            "tokens": list(tokens),
            "token_logprobs": [-1.0] * count,
            "top_logprobs": [],
            "text_offset": [-1] * count,
        }

    relay = TextRelay(request(choices=2), RID)
    out = relay.feed(frame("ab", logprobs=logs("a", "b")))
    out += relay.feed(frame("x", index=1, logprobs=logs("x")))
    out += relay.feed(frame("cd", "stop", logprobs=logs("cd")))
    out += relay.feed(frame("y", "length", 1, logprobs=logs("y")) + DONE)
    offsets = [one["choices"][0]["logprobs"]["text_offset"] for one in events(out)[:-1]]
    assert offsets == [[0, 1], [0], [2], [1]]
    assert events(out)[0]["choices"][0]["logprobs"]["top_logprobs"] is None
    assert out.endswith(DONE)


def test_a_stream_that_ends_early_or_is_given_up_is_an_error() -> None:
    relay = TextRelay(request(), RID)
    relay.feed(frame("ab"))
    with pytest.raises(WorkerUnreachable):
        relay.end()
    with pytest.raises(WorkerUnreachable):
        TextRelay(request(), RID).feed(frame("ab", "abort"))


def test_an_answer_without_choices_is_an_error() -> None:
    with pytest.raises(UpstreamError):
        text_answer({"choices": []}, request(), RID)


def embedded(form: str, *rows: Any) -> dict[str, Any]:
    engine = {"data": [{"embedding": row} for row in rows], "usage": {"prompt_tokens": 3}}
    asked = request(
        endpoint=Endpoint.EMBEDDINGS, body={"encoding_format": form}, choices=2, stream=False
    )
    return embedding_answer(engine, asked, "embd-0")[0]


def test_embeddings_come_in_the_form_that_was_asked_for_whatever_the_worker_sent() -> None:
    floats, packed = [0.5, -1.0], base64.b64encode(struct.pack("<2f", 0.5, -1.0)).decode()
    assert [r["embedding"] for r in embedded("float", floats, packed)["data"]] == [floats, floats]
    body = embedded("base64", floats, packed)
    assert body["data"] == [
        {"object": "embedding", "index": 0, "embedding": packed},
        {"object": "embedding", "index": 1, "embedding": packed},
    ]
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert (body["object"], body["model"]) == ("list", "writer")


@pytest.mark.parametrize("rows", [([0.5],), (["x"], "?"), ([0.1], "AAA")])
def test_embeddings_that_cannot_be_read_are_the_workers_fault(rows: tuple[Any, ...]) -> None:
    with pytest.raises(UpstreamError):
        embedded("base64" if rows[-1] == "?" else "float", *rows)
