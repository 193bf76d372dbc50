"""Requests that are refused as they are: each with its exact status, headers and error body."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from inferd.clock import monotonic
from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import gateway
from tests.http.raw_connection import CHAT_PATH, Answer, ask, chat, client_of, raw_connection

pytestmark = pytest.mark.real_time

REQUEST_ID = re.compile(r"req_[0-9a-f]{32}")
INVALID = "invalid_request_error"

BODIES: list[tuple[Any, dict[str, str], str | None, str | None]] = [
    # body, headers, code, param
    (b"{", {}, None, None),
    (b"\xff\xfe", {}, None, None),
    (b"[]", {}, "invalid_type", None),
    (b'"text"', {}, "invalid_type", None),
    (b'{"model":"chat","messages":[],"seed":NaN}', {}, None, None),
    (chat(), {"content-type": "text/plain"}, "unsupported_content_type", None),
    (chat(), {"content-encoding": "gzip"}, "unsupported_content_encoding", None),
    ({"model": "chat"}, {}, "missing_required_parameter", "messages"),
    ({"messages": []}, {}, "missing_required_parameter", "model"),
    (chat(messages=[]), {}, "empty_array", "messages"),
    (chat(colour="red"), {}, "unknown_parameter", "colour"),
    (chat(store=True), {}, "unsupported_value", "store"),
    (chat(temperature="hot"), {}, "invalid_type", "temperature"),
    (chat(temperature=2.5), {}, "decimal_above_max_value", "temperature"),
    (chat(n=9), {}, "integer_above_max_value", "n"),
    (chat(n=True), {}, "invalid_type", "n"),
    (chat(max_tokens=0), {}, "integer_below_min_value", "max_tokens"),
    (chat(max_tokens=10**400), {}, None, None),
    (chat(stop=list("12345")), {}, "array_above_max_length", "stop"),
    (chat(top_logprobs=2), {}, "invalid_parameter_combination", "top_logprobs"),
    (
        chat(stream_options={"include_usage": True}),
        {},
        "invalid_parameter_combination",
        "stream_options",
    ),
    (chat(max_tokens=9_000), {}, "integer_above_max_value", "max_tokens"),
    (chat("word " * 5_000, max_tokens=5), {}, "context_length_exceeded", "messages"),
]


def assert_error(
    answer: Answer, status: int, code: str | None, kind: str = INVALID
) -> dict[str, Any]:
    """What every error has: the four keys, the id, the type of the body, who refused."""
    assert answer.status == status, answer.body
    error = answer.error
    assert list(error) == ["message", "type", "param", "code"]
    assert (error["type"], error["code"]) == (kind, code)
    assert isinstance(error["message"], str)
    assert error["message"]
    assert REQUEST_ID.fullmatch(answer.headers["x-request-id"])
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-inferd-source"] in {"gateway", "worker"}
    return error


async def test_bodies_that_are_wrong_are_refused_by_name_and_cost_nothing(
    tmp_path: Path, fast: EngineProcess
) -> None:
    limits = {"tokens_per_s": 1, "burst_tokens": 100_000}
    async with gateway(tmp_path, fast, team=limits) as inferd:
        async with client_of(inferd) as client:
            for body, headers, code, param in BODIES:
                data = body if isinstance(body, bytes) else _json(body)
                client.request("POST", CHAT_PATH, data, headers)
                answer = await client.answer()
                error = assert_error(answer, 400, code)
                assert error["param"] == param, error
                assert param is None or param in error["message"]
                assert answer.headers["x-ratelimit-limit-tokens"] == "100000"
                assert int(answer.headers["x-ratelimit-remaining-tokens"]) >= 99_000
        rows = await inferd.rows()
        served = await ask(inferd, chat(max_tokens=2))
    assert [row.error_code for row in rows] == ["context_length_exceeded"]
    assert rows[0].prompt_tokens == 0
    assert served.status == 200
    assert REQUEST_ID.fullmatch(served.headers["x-request-id"])
    assert served.headers["openai-version"] == "2020-10-01"
    assert int(served.headers["openai-processing-ms"]) >= 0
    assert served.headers["openai-organization"] == rows[0].team
    assert served.headers["openai-project"] == rows[0].key_id


def _json(body: Any) -> bytes:
    """orjson writes no integer of 400 digits; a client in another language does."""
    huge = 10**400
    if body.get("max_tokens") != huge:
        return orjson.dumps(body)
    return orjson.dumps({**body, "max_tokens": 7_777}).replace(b"7777", str(huge).encode())


async def test_unknown_paths_models_and_methods(tmp_path: Path, fast: EngineProcess) -> None:
    async with gateway(tmp_path, fast) as inferd, client_of(inferd) as client:
        for path in (
            "/",
            "/v1",
            "/v1/chat/completions/",
            "/v1/completion",
            "/metrics",
            "/admin/v1/keys",
        ):
            client.request("GET", path)
            assert path in assert_error(await client.answer(), 404, "unknown_url")["message"]
        client.request("GET", CHAT_PATH)
        answer = await client.answer()
        assert_error(answer, 405, "method_not_supported")
        assert answer.headers["allow"] == "POST"
        client.request("PUT", "/v1/models/chat")
        assert_error(await client.answer(), 405, "method_not_supported")
        for name in ("gpt-9", "chat@9", "Chat", "org/gpt-9"):
            client.chat(chat(model=name))
            error = assert_error(await client.answer(), 404, "model_not_found")
            assert error["param"] == "model"
            assert name in error["message"]
        client.request("GET", "/v1/models/org%2Fgpt-9")
        assert "org/gpt-9" in assert_error(await client.answer(), 404, "model_not_found")["message"]


async def test_a_body_over_the_limit_announced_or_not(tmp_path: Path, fast: EngineProcess) -> None:
    async with gateway(tmp_path, fast, server={"body_bytes_max": 2_000}) as inferd:
        announced = await ask(inferd, chat("x" * 2_000))
        assert "2000" in assert_error(announced, 413, "request_too_large")["message"]
        async with client_of(inferd) as client:
            headers = {"transfer-encoding": "chunked", "content-type": "application/json"}
            client.request("POST", CHAT_PATH, headers=headers)
            for _ in range(3):
                client.send(b"3e8\r\n" + b" " * 1_000 + b"\r\n")
            client.send(b"0\r\n\r\n")
            assert_error(await client.answer(), 413, "request_too_large")
            client.chat(chat(max_tokens=1))
            assert (await client.answer()).status == 200, "the connection is good for the next one"
        assert (await ask(inferd, chat("x" * 1_000, max_tokens=1))).status == 200


async def test_a_body_sent_in_pieces_is_read_and_one_that_stops_is_not_waited_for(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        async with client_of(inferd) as client:
            data = orjson.dumps(chat(max_tokens=1))
            client.request("POST", CHAT_PATH, data[:10], {"content-length": str(len(data))})
            await asyncio.sleep(0.1)
            client.send(data[10:])
            assert (await client.answer()).status == 200
        async with client_of(inferd) as client:
            client.request("POST", CHAT_PATH, data[:10], {"content-length": str(len(data))})
            began = monotonic()
            answer = await client.answer()
            assert 0.9 < monotonic() - began < 5, "the body's second, not a deadline"
            assert_error(answer, 408, "request_timeout")
            assert answer.headers["connection"] == "close"
            assert await client.ended()
    assert "x-should-retry" not in answer.headers


NO_REQUESTS = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"hello\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: x\r\nno colon here\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 400_000,
]


async def test_bytes_that_are_no_request_are_answered_and_the_connection_ends(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        for sent in NO_REQUESTS:
            async with raw_connection(inferd.public) as client:
                client.send(sent)
                answer = await client.answer()
                assert_error(answer, 400, None)
                assert answer.headers["connection"] == "close"
                assert await client.ended()
        assert (await ask(inferd, chat(max_tokens=1))).status == 200


async def test_a_head_that_does_not_end_is_not_waited_for(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd, client_of(inferd) as client:
        client.chat(chat(max_tokens=1))
        assert (await client.answer()).status == 200
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: ")
        began = monotonic()
        assert_error(await client.answer(), 408, "request_timeout")
        assert 0.9 < monotonic() - began < 5, "the head's second, not a deadline"
        assert await client.ended()


async def test_garbage_behind_a_running_stream_ends_the_connection_and_nothing_is_mixed_into_it(
    tmp_path: Path, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, paced) as inferd:
        async with client_of(inferd) as client:
            client.chat(chat(max_tokens=500, ignore_eos=True, stream=True))
            await client.head()
            client.send(b"\x00\x01 garbage\r\n\r\n")
            answer = await client.rest()
        await inferd.at_rest()
    assert not answer.complete
    assert b"HTTP/1.1" not in answer.body
    assert answer.told.chunks


async def test_more_connections_than_allowed_are_told_so(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with (
        gateway(tmp_path, fast, server={"connections_max": 2}) as inferd,
        client_of(inferd) as first,
        client_of(inferd) as second,
    ):
        for client in (first, second):
            client.request("GET", "/v1/models")
            assert (await client.answer()).status == 200
        async with raw_connection(inferd.public) as third:
            answer = await third.answer()
            assert_error(answer, 429, "overloaded", "server_error")
            assert answer.headers["retry-after"] == "1"
            assert await third.ended()
        first.leave()
        await asyncio.sleep(0.05)
        assert (await ask(inferd, chat(max_tokens=1))).status == 200
