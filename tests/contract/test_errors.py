"""Bad input, on both engines: status, shape, and words the gateway translates."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.contract.client import idle_after
from tests.contract.raw_http import encode_request, exchange
from tests.fakes.engines import EngineProcess

pytestmark = pytest.mark.real_time

TOO_LARGE = (
    "max_completion_tokens is too large: 999999.This model supports at most 2048 completion tokens."
)
OVER_THE_CONTEXT = (
    "Requested token count exceeds the model's maximum context length of 2048 tokens. "
    "You requested a total of 2071 tokens: 31 tokens from the input messages and 2040 "
    "tokens for the completion. Please reduce the number of tokens in the input messages "
    "or the completion to fit within the limit."
)
HI = [{"role": "user", "content": "hi"}]


def flat(kind: str, message: str) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": 400}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"messages": HI, "max_tokens": 999_999},
            TOO_LARGE,
        ),
        (
            {"messages": HI, "max_tokens": 2_040},
            OVER_THE_CONTEXT,
        ),
        (
            {"messages": [{"role": "user", "content": "word" + " word" * 2_999}]},
            "The input (3030 tokens) is longer than the model's context length (2048 tokens).",
        ),
        ({"messages": []}, "Messages cannot be empty."),
        ({"messages": HI, "max_tokens": -1}, "max_new_tokens must be at least 0, got -1."),
        (
            {"messages": HI, "temperature": -1.0},
            "temperature must be a non-negative finite number, got -1.0.",
        ),
        (
            {"messages": HI, "tool_choice": "required"},
            "Tools cannot be empty if tool choice is set to required.",
        ),
    ],
)
async def test_what_the_engine_refuses_it_refuses_with_a_400(
    shared_engine: EngineProcess, stream: bool, body: dict[str, Any], message: str
) -> None:
    async with idle_after(shared_engine) as client:
        answer = await client.ask({"model": shared_engine.model, "stream": stream, **body})
        assert answer.status == 400
        assert orjson.loads(answer.body) == flat("BadRequestError", message)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"model":', "'type': 'json_invalid', 'loc': ('body', 9), 'msg': 'JSON decode error'"),
        (b'{"model":"m"}', "'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field requir"),
        (
            b'{"model":"m","messages":"x"}',
            "'type': 'list_type', 'loc': ('body', 'messages'), 'msg': 'Input should be a valid li",
        ),
    ],
)
async def test_validation_errors_leak_a_path_of_the_server(
    shared_engine: EngineProcess, raw: bytes, words: str
) -> None:
    async with idle_after(shared_engine) as client:
        answer = await client.post("/v1/chat/completions", raw)
        assert answer.status == 400
        error = orjson.loads(answer.body)
        assert error["type"] == "Bad Request"
        assert error["message"].startswith("1 validation error:\n  {" + words)
        assert "sglang/srt/entrypoints/http_server.py" in error["message"]
        assert "POST /v1/chat/completions [{" in error["message"]


async def test_a_body_that_is_no_object_is_a_500_in_plain_text(
    shared_engine: EngineProcess,
) -> None:
    async with idle_after(shared_engine) as client:
        answer = await client.post("/v1/chat/completions", [])
        assert (answer.status, answer.text) == (500, "Internal Server Error")


async def test_only_json_is_taken(shared_engine: EngineProcess) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    request = encode_request("POST", "/v1/chat/completions", body, shared_engine.headers)
    assert b"content-type: application/json" in request
    answer = await exchange(
        shared_engine.port,
        "POST",
        "/v1/chat/completions",
        body,
        shared_engine.headers,
        content_type="text/plain",
    )
    assert answer.status == 400
    assert "Only 'application/json' is allowed" in answer.text


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/get_load", "/nothing"])
async def test_what_is_not_there(shared_engine: EngineProcess, path: str) -> None:
    async with idle_after(shared_engine) as client:
        answer = await client.get(path)
        assert (answer.status, answer.text) == (404, '{"detail":"Not Found"}')


async def test_a_wrong_method(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        answer = await client.get("/v1/chat/completions")
        assert (answer.status, answer.text) == (405, '{"detail":"Method Not Allowed"}')


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}])
async def test_the_key_guards_all_but_probes(
    shared_engine: EngineProcess, headers: dict[str, str]
) -> None:
    port = shared_engine.port
    for path in ("/v1/models", "/v1/loads", "/server_info", "/model_info"):
        answer = await exchange(port, "GET", path, headers=headers)
        assert (answer.status, answer.text) == (401, '{"error":"Unauthorized"}'), path
    for path in ("/ready", "/health", "/metrics"):
        assert (await exchange(port, "GET", path, headers=headers)).status == 200, path
    answer = await exchange(port, "POST", "/abort_request", b'{"rid":"x"}', headers)
    assert answer.status == 401
