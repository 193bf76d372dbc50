"""Hostile values in what is kept and in what names it: ids, queries, keys, batches, uploads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest

from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import MODEL, gateway
from tests.http.raw_connection import Answer, RawConnection, client_of, raw_connection
from tests.http.test_files import END, FORM, LINE, part, serving
from tests.http.test_hostile_input import HOSTILE, NAUGHTY, assert_refused, post

pytestmark = pytest.mark.real_time(timeout_s=120)

UPLOAD = {"bytes": 9, "filename": "a.jsonl", "mime_type": "x", "purpose": "batch"}
BATCH = {
    "input_file_id": "file-1",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}


async def get(client: RawConnection, path: str) -> Answer:
    client.request("GET", path)
    return await client.answer()


async def test_naughty_strings_in_batches_and_uploads(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd, client_of(inferd) as client:
        for number, text in enumerate(NAUGHTY):
            for name in ("endpoint", "completion_window", "output_expires_after", f"x{text}"):
                answer = await post(client, {**BATCH, name: text}, "/v1/batches")
                assert assert_refused(answer, 400)["param"].startswith(name[:60])
            for name in ("purpose", "bytes", "expires_after", f"x{text}"):
                answer = await post(client, {**UPLOAD, name: text}, "/v1/uploads")
                assert_refused(answer, 400)
            if number % 4:  # what is kept is written to a disk, and takes its time
                continue
            label = {text[:64]: text[:512]}
            made = await post(client, {**BATCH, "metadata": label}, "/v1/batches")
            assert made.status == 200, made.body
            assert made.json["metadata"] == label
            asked = await post(client, {**BATCH, "input_file_id": text}, "/v1/batches")
            if text and len(text) <= 128:  # what is wrong with the file is told by the batch
                assert asked.status == 200, asked.body
            else:
                assert_refused(asked, 400)
            named = {**UPLOAD, "filename": f"{text}.jsonl", "mime_type": text[:255]}
            answer = await post(client, named, "/v1/uploads")
            assert answer.status in {200, 400}, answer.body
            if answer.status == 200:
                path = f"/v1/uploads/{answer.json['id']}/complete"
                for wrong in ({"part_ids": [text or "p"]}, {"part_ids": ["p"], "md5": text}):
                    assert_refused(await post(client, wrong, path), 400)


async def test_naughty_strings_in_ids_and_queries(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd, client_of(inferd) as client:
        for text in NAUGHTY:
            named = quote(text, safe="")
            if named and named not in {".", ".."}:
                for path in (f"/v1/files/{named}", f"/v1/batches/{named}"):
                    assert_refused(await get(client, path), 404)
                assert_refused(await get(client, f"/v1/files/{named}/content"), 404)
                answer = await post(client, {}, f"/v1/uploads/{named}/cancel")
                assert_refused(answer, 404)
            for query in (f"x{named}=1", f"limit={named}x", f"order={named}", f"purpose={named}x"):
                assert_refused(await get(client, f"/v1/files?{query}"), 400)
            assert_refused(await get(client, f"/v1/files?after=x{named}"), 400, 404)
            assert_refused(await get(client, f"/v1/batches?limit={named}x"), 400)
            assert_refused(await get(client, f"/v1/batches?x{named}=1"), 400)
            assert_refused(await get(client, f"/v1/batches?after=x{named}"), 404)


async def test_naughty_strings_for_a_key_or_in_a_form(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd:
        async with raw_connection(inferd.public) as nobody:
            for text in NAUGHTY:
                value = "".join(one for one in text if one.isprintable())
                for given in (value, f"Bearer {value}", f"Basic {value}"):
                    nobody.request("GET", "/v1/models", headers={"authorization": given})
                    assert_refused(await nobody.answer(), 401)
        async with client_of(inferd) as client:
            for text in NAUGHTY[::3]:
                field = "".join(one for one in text if one.isprintable() and one not in '"\\')
                for more in (
                    part(f"x{field}", b"1"),
                    part("purpose", text.encode()),
                    part("expires_after[anchor]", text.encode()),
                    part("expires_after[seconds]", text.encode()),
                ):
                    body = more + part("file", LINE, "a.jsonl") + END
                    headers = {"content-type": FORM}
                    client.request("POST", "/v1/files", body, headers)
                    assert_refused(await client.answer(), 400)


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/uploads", "/v1/uploads/upload_1/complete"])
async def test_hostile_bodies_for_what_is_kept(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path) as inferd, client_of(inferd) as client:
        for body in (*HOSTILE, b"[]", b"1", b'"text"', b"null"):
            error = assert_refused(await post(client, body, path), 400, 404, 413)
            assert "the request body'" not in str(error["param"])
        assert (await post(client, UPLOAD, "/v1/uploads")).status == 200


async def test_hostile_values_for_an_embedding(tmp_path: Path, embedder: EngineProcess) -> None:
    model = {"kind": "embedding", "vocabulary_tokens": 49_152}
    path = "/v1/embeddings"

    def embedding(given: Any, **more: Any) -> dict[str, Any]:
        return {"model": MODEL, "input": given, **more}

    async with gateway(tmp_path, embedder, model=model) as inferd, client_of(inferd) as client:
        for text in NAUGHTY:
            answer = await post(client, embedding([text, f"{text}!"], user=text[:512]), path)
            if text.strip():
                assert answer.status == 200, (text, answer.body)
                assert len(answer.json["data"]) == 2
            else:
                assert_refused(answer, 400)
            wrong = await post(client, embedding("a", encoding_format=f"{text}?"), path)
            assert_refused(wrong, 400)
        for body in HOSTILE:
            assert_refused(await post(client, body, path), 400)
        wrong_inputs: list[Any] = [
            *([], [[]], [""], "", " ", None, 7, {}, True, [True], [[True]], [1.5], ["a", 1]),
            *([1, "a"], [[1], "a"], [-1], [2**31], [2**70], ["a"] * 2_049, [1] * 2_049),
        ]
        for given in wrong_inputs:
            raw = json.dumps(embedding(given)).encode()
            assert_refused(await post(client, raw, path), 400)
        assert (await post(client, orjson.dumps(embedding("a")), path)).status == 200
