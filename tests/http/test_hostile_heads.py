"""Heads and framings of requests that mean harm: a 4xx in the envelope or a cut, never a stall."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import gateway
from tests.http.raw_connection import CHAT_PATH, ask, chat, client_of, raw_connection
from tests.http.test_refusals import assert_error

pytestmark = pytest.mark.real_time

START = f"POST {CHAT_PATH} HTTP/1.1\r\nhost: x\r\n".encode()
JSON = b"content-type: application/json\r\n"
BODY = orjson.dumps(chat(max_tokens=1))
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"

BOMBS: dict[str, bytes] = {
    "many headers": START + b"".join(b"x-%d: y\r\n" % n for n in range(20_000)) + b"\r\n",
    "the same header": START + b"cookie: a=b\r\n" * 20_000 + b"\r\n",
    "a long name": START + b"n" * 200_000 + b": y\r\n\r\n",
    "a long value": START + b"authorization: Bearer " + b"y" * 200_000 + b"\r\n\r\n",
    "a long path": b"GET /v1/models/" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "a name of odd bytes": START + b"\x00\xff: y\r\n\r\n",
    "a value with a NUL": START + b"x: \x00\r\n\r\n",
    "two lengths": START + JSON + b"content-length: 1\r\ncontent-length: 5\r\n\r\n" + BODY,
    "a length and chunks": START + JSON + LENGTH + CHUNKED + b"\r\n0\r\n\r\n",
    "a negative length": START + JSON + b"content-length: -1\r\n\r\n" + BODY,
    "a length of many digits": START + JSON + b"content-length: " + b"9" * 40 + b"\r\n\r\n",
    "a length that is none": START + JSON + b"content-length: 0x10\r\n\r\n" + BODY,
    "an unknown coding": START + JSON + b"transfer-encoding: gzip\r\n\r\n",
    "a chunk of no size": START + JSON + CHUNKED + b"\r\nzz\r\n" + BODY,
    "a chunk of endless size": START + JSON + CHUNKED + b"\r\n" + b"f" * 40 + b"\r\n" + BODY,
    "an old protocol": b"GET /v1/models HTTP/0.9\r\n\r\n",
    "no protocol": b"GET /v1/models\r\n\r\n",
    "a method of its own": b"BREW /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", BOMBS)
async def test_a_head_that_means_harm_is_refused_in_the_envelope(
    tmp_path: Path, fast: EngineProcess, name: str
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        async with raw_connection(inferd.public) as client, asyncio.timeout(10):
            client.send(BOMBS[name])
            answer = await client.answer()
            assert answer.status in {400, 401, 405, 413}, answer.body
            assert_error(answer, answer.status, answer.error["code"])
        assert (await ask(inferd, chat(max_tokens=1))).status == 200


async def test_a_body_in_chunks_without_a_length_is_a_body(
    tmp_path: Path, fast: EngineProcess
) -> None:
    headers = {"transfer-encoding": "chunked", "content-type": "application/json"}
    async with gateway(tmp_path, fast) as inferd, client_of(inferd) as client:
        for size in (1, 7, len(BODY)):
            client.request("POST", CHAT_PATH, headers=headers)
            for at in range(0, len(BODY), size):
                piece = BODY[at : at + size]
                client.send(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
            client.send(b"0\r\ntrailer: x\r\n\r\n")
            assert (await client.answer()).status == 200
        client.request("POST", CHAT_PATH, headers=headers)
        client.send(b"1\r\n{\r\n")
        assert_error(await client.answer(), 408, "request_timeout")


async def test_bombs_of_many_stall_nobody(tmp_path: Path, fast: EngineProcess) -> None:
    async with gateway(tmp_path, fast) as inferd:

        async def bomb(sent: bytes) -> int:
            async with raw_connection(inferd.public) as client:
                client.send(sent)
                return (await client.answer()).status

        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            bombs = [group.create_task(bomb(sent)) for sent in BOMBS.values() for _ in range(3)]
            for _ in range(10):
                async with asyncio.timeout(2):
                    assert (await ask(inferd, chat(max_tokens=1))).status == 200
    assert {one.result() for one in bombs} <= {400, 401, 405, 413}
