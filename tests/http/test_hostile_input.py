"""Hostile values in all that a client may write: an answer or a 4xx in the envelope, never more."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest

from inferd.clock import monotonic
from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import MODEL, gateway
from tests.http.raw_connection import CHAT_PATH, Answer, RawConnection, chat, client_of

pytestmark = pytest.mark.real_time(timeout_s=120)

NAUGHTY: list[str] = json.loads(
    (Path(__file__).parents[1] / "data" / "blns.json").read_text(encoding="utf-8")
)
LABEL_MAX, IDENTIFIER_MAX = 512, 128


def assert_refused(answer: Answer, *statuses: int) -> dict[str, Any]:
    assert answer.status in statuses, (answer.status, answer.body[:500])
    error = answer.error
    assert list(error) == ["message", "type", "param", "code"]
    assert error["type"] == "invalid_request_error"
    assert "Traceback" not in error["message"]
    return error


async def post(client: RawConnection, body: Any, path: str = CHAT_PATH) -> Answer:
    client.request("POST", path, body if isinstance(body, bytes) else orjson.dumps(body))
    return await client.answer()


def written_everywhere(text: str) -> dict[str, Any]:
    """A valid chat with `text` wherever a client may write what it likes."""
    label = text[:LABEL_MAX]
    call = {
        "id": text[:64] or "c",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
    }
    parameters = {
        "type": "object",
        "properties": {text: {"type": "string", "description": text, "enum": [text, "b"]}},
        "required": [text],
    }
    function = {"name": "f", "description": text, "parameters": parameters}
    return chat(
        messages=[
            {"role": "system", "content": text},
            {"role": "user", "content": [{"type": "text", "text": text}], "name": "someone"},
            {"role": "assistant", "content": text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": text[:64] or "c", "content": text},
            {"role": "user", "content": f"[say {text}]"},
        ],
        tools=[{"type": "function", "function": function}],
        metadata={(text[:64] or "k"): label},
        user=label,
        safety_identifier=text[:IDENTIFIER_MAX],
        prompt_cache_key=label,
        stop=[text or "x"],
        max_tokens=4,
    )


async def test_naughty_strings_wherever_a_client_may_write(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd, client_of(inferd) as client:
        for number, text in enumerate(NAUGHTY):
            answer = await post(client, written_everywhere(text))
            assert answer.status == 200, (text, answer.body)
            assert answer.json["metadata"] == {(text[:64] or "k"): text[:LABEL_MAX]}
            if number % 3:  # the other endpoints check their bodies by the same rules
                continue
            whole = {"model": MODEL, "input": text or "x", "instructions": text, "user": text}
            answer = await post(client, {**whole, "max_output_tokens": 2}, "/v1/responses")
            assert answer.status == 200, (text, answer.body)
            body = {"model": MODEL, "prompt": [text or "x", f"{text}!"], "max_tokens": 1}
            answer = await post(client, {**body, "suffix": None, "echo": True}, "/v1/completions")
            assert answer.status == 200, (text, answer.body)
            assert answer.json["choices"][1]["text"].startswith(f"{text}!")
        assert all(row.error_code is None for row in await inferd.rows())


async def test_naughty_strings_where_only_some_words_may_stand(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd, client_of(inferd) as client:
        for text in NAUGHTY:
            error = assert_refused(await post(client, chat(model=text)), 400, 404)
            assert error["param"] == "model"
            error = assert_refused(await post(client, chat(**{f"x{text}": 1})), 400)
            assert error["code"] == "unknown_parameter"
            tool = {"type": "function", "function": {"name": f"{text}\x7f"}}
            assert_refused(await post(client, chat(tools=[tool])), 400)
            shape = {"type": "json_schema", "json_schema": {"name": f"{text} ", "schema": {}}}
            assert_refused(await post(client, chat(response_format=shape)), 400)
            for name in ("tool_choice", "reasoning_effort", "service_tier", "priority"):
                assert_refused(await post(client, chat(**{name: f"{text}?"})), 400)
            assert_refused(await post(client, chat(messages=[{"role": text, "content": "a"}])), 400)
            client.request("GET", f"/v1/models/{quote(text, safe='')}")
            answer = await client.answer()
            if text not in {"", MODEL}:
                assert_refused(answer, 404)
        assert await inferd.rows() == []


async def test_naughty_strings_in_headers_are_no_part_of_an_answer(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        for text in NAUGHTY:
            value = "".join(one for one in text if one.isprintable())
            async with client_of(inferd) as client:
                names = ("x-client-request-id", "idempotency-key", "user-agent", "accept", "origin")
                client.request(
                    "POST",
                    CHAT_PATH,
                    orjson.dumps(chat(max_tokens=1)),
                    {**dict.fromkeys(names, value), "x-inferd-explain": value},
                )
                answer = await client.answer()
            assert answer.status in {200, 400}, (text, answer.body)
            assert len(value) < 8 or value.lower() not in str(answer.headers).lower()


DEEP = 100_000
HOSTILE: list[bytes] = [
    b"[" * DEEP,
    b'{"model":"chat","messages":' + b"[" * DEEP + b"]" * DEEP + b"}",
    b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    b'{"model":"chat","messages":[{"role":"user","content":"\\ud800"}]}',
    b'{"model":"chat","messages":[{"role":"user","content":"a"}],"user":"\\udfff x"}',
    b'{"model":"\\ud83d","messages":[{"role":"user","content":"a"}]}',
    b'{"model":"chat","\\ud800":1,"messages":[{"role":"user","content":"a"}]}',
    b'{"model":"chat","messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
    b'{"model":"chat","messages":[{"role":"user","content":"\xc0\xaf"}]}',
    b'{"model":"chat","messages":[{"role":"user","content":"a"}],"temperature":NaN}',
    b'{"model":"chat","messages":[{"role":"user","content":"a"}],"temperature":Infinity}',
    b'{"model":"chat","messages":[{"role":"user","content":"a"}],"temperature":-Infinity}',
    b'{"model":"chat","messages":[{"role":"user","content":"a"}],"temperature":1e999}',
    b'{"model":"chat","messages":[{"role":"user","content":"a"}],"seed":' + b"9" * 5_000 + b"}",
    b'{"model":"chat","messages":[{"role":"user","content":"a"}],"seed":1e400}',
    b'{"model":"chat","messages":[{"role":"user","content":"a"}],"n":2e0}',
    b'{"model":"chat","messages":[{"role":"user","content":"a"}],"n":-0}',
    b'{"model":"chat","messages":[{"role":"user","content":"a"}],"logit_bias":{"\xf0\x9f\x98\x80":1}}',
    b'\xef\xbb\xbf{"model":"chat","messages":[{"role":"user","content":"a"}],"x":1}',
    b'{"model":"chat","messages":[{"role":"user","content":"a"}]} trailing',
    b'{"model":"chat","messages":[{"role":"user","content":"a"}],"n":1,"n":"two"}',
    b'{"model":"chat","model":7,"messages":[{"role":"user","content":"a"}]}',
    b"\x00" * 1_000,
]


PATHS = [
    *(CHAT_PATH, "/v1/completions", "/v1/responses", "/v1/responses/input_tokens", "/v1/tokenize"),
]


@pytest.mark.parametrize("path", PATHS)
async def test_hostile_bodies_are_refused_on_every_endpoint(
    tmp_path: Path, fast: EngineProcess, path: str
) -> None:
    async with gateway(tmp_path, fast) as inferd, client_of(inferd) as client:
        for body in HOSTILE:
            assert_refused(await post(client, body, path), 400)
        assert (await post(client, chat(max_tokens=1))).status == 200


async def test_huge_strings_are_refused_and_stall_nobody(
    tmp_path: Path, fast: EngineProcess
) -> None:
    huge = "x" * 10_000_000
    places: list[Any] = [
        chat(huge),
        chat(user=huge),
        chat(metadata={"k": huge}),
        chat(model=huge),
        chat(**{huge: 1}),
        chat(stop=huge),
        chat(response_format={"type": huge}),
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {huge: huge}}}]),
    ]
    slowest = 0.0
    async with (
        gateway(tmp_path, fast, server={"body_bytes_max": 30_000_000}) as inferd,
        client_of(inferd) as client,
    ):

        async def hostile() -> None:
            async with client_of(inferd) as other:
                for body in places:
                    error = assert_refused(await post(other, body), 400, 404)
                    assert len(error["message"]) < 2_000

        async with asyncio.TaskGroup() as group:
            running = group.create_task(hostile())
            while not running.done():
                began = monotonic()
                assert (await post(client, chat(max_tokens=1))).status == 200
                slowest = max(slowest, monotonic() - began)
    assert slowest < 1.0


async def test_a_duplicate_key_counts_as_its_last_value_everywhere(
    tmp_path: Path, fast: EngineProcess
) -> None:
    raw = (
        b'{"model":"none","model":"chat","max_tokens":2,"extra":1,"messages":[{"role":"tool",'
        b'"role":"user","content":"first","content":"second"}]}'
    ).replace(b'"extra":1,', b"")
    async with gateway(tmp_path, fast) as inferd, client_of(inferd) as client:
        assert (await post(client, raw)).status == 200
        sent = (await inferd.engine.stats())["requests"][-1]["body"]
    assert sent["messages"] == [{"role": "user", "content": "second"}]
