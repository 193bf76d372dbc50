"""Files in parts. Goal: the parts in their order make the file, and nothing else stays."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from inferd.storage.object_store import SEGMENT_BYTES
from tests.fakes.gateway import Gateway
from tests.http.raw_connection import Answer, client_of
from tests.http.test_files import LINE, content, form, part, serving, stored, upload

pytestmark = pytest.mark.real_time


async def post(inferd: Gateway, path: str, **body: Any) -> Answer:
    async with client_of(inferd) as client:
        client.request("POST", f"/v1/uploads{path}", orjson.dumps(body))
        return await client.answer()


async def begun(inferd: Gateway, size: int, **more: Any) -> str:
    body = {"bytes": size, "filename": "a.jsonl", "mime_type": "x", "purpose": "batch", **more}
    answer = await post(inferd, "", **body)
    assert answer.status == 200, answer.body
    assert answer.json["status"] == "pending"
    return str(answer.json["id"])


async def send_part(inferd: Gateway, upload_id: str, data: bytes) -> Answer:
    path = f"/v1/uploads/{upload_id}/parts"
    return await upload(inferd, form(part("data", data, "upload")), path)


async def test_the_sdk_sends_a_file_in_parts(tmp_path: Path) -> None:
    data = LINE * (SEGMENT_BYTES // len(LINE) + 100)
    async with serving(tmp_path) as inferd, inferd.openai() as client:
        done = await client.uploads.upload_file_chunked(
            file=data,
            filename="day.jsonl",
            bytes=len(data),
            mime_type="application/jsonl",
            purpose="batch",
            part_size=1_000_000,
            md5=hashlib.md5(data).hexdigest(),
        )
        assert done.status == "completed"
        assert done.file is not None
        assert (done.file.bytes, done.file.filename) == (len(data), "day.jsonl")
        assert (await client.files.content(done.file.id)).content == data
        some = await content(inferd, done.file.id, range="bytes=999990-1000009")
        assert some.body == data[999_990:1_000_010]
        await client.files.delete(done.file.id)
        assert stored(tmp_path) == []
        assert inferd.app.node.files.held("search").files == 0


async def test_the_order_is_that_of_the_list_and_the_rest_goes(tmp_path: Path) -> None:
    first, second = LINE, LINE.replace(b'"1"', b'"2"')
    async with serving(tmp_path) as inferd:
        upload_id = await begun(inferd, 3 * len(LINE))
        answers = await asyncio.gather(
            *(send_part(inferd, upload_id, data) for data in (second, first, b"x"))
        )
        ids = [answer.json["id"] for answer in answers]
        short = await post(inferd, f"/{upload_id}/complete", part_ids=[ids[1], ids[0]])
        assert (short.status, short.error["param"]) == (400, "part_ids")
        rest = (await send_part(inferd, upload_id, LINE[1:])).json["id"]
        whole = await post(
            inferd, f"/{upload_id}/complete", part_ids=[ids[1], ids[0], ids[2], rest]
        )
        assert whole.status == 200, whole.body
        again = await post(inferd, f"/{upload_id}/complete", part_ids=ids)
        assert again.json["file"] == whole.json["file"]
        assert (await content(inferd, whole.json["file"]["id"])).body == (
            first + second + b"x" + LINE[1:]
        )
        late = await send_part(inferd, upload_id, LINE)
        assert late.status == 400
        assert "completed" in late.error["message"]
        assert len(stored(tmp_path)) == 4


async def test_of_many_completes_at_once_one_makes_the_file(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd:
        upload_id = await begun(inferd, len(LINE))
        part_id = (await send_part(inferd, upload_id, LINE)).json["id"]
        answers = await asyncio.gather(
            *(post(inferd, f"/{upload_id}/complete", part_ids=[part_id]) for _ in range(4))
        )
        assert [(answer.status, answer.json["status"]) for answer in answers] == [
            (200, "completed")
        ] * 4
        assert len({answer.json["file"]["id"] for answer in answers}) == 1
        assert inferd.app.node.files.held("search").files == 1


async def test_a_part_too_many_is_refused_and_gone(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd:
        upload_id = await begun(inferd, len(LINE))
        part_id = (await send_part(inferd, upload_id, LINE)).json["id"]
        over = await send_part(inferd, upload_id, b"x")
        assert over.status == 400
        assert len(stored(tmp_path)) == 1
        wrong = await post(inferd, f"/{upload_id}/complete", part_ids=[part_id], md5="0" * 32)
        assert (wrong.status, wrong.error["param"]) == (400, "md5")
        twice = await post(inferd, f"/{upload_id}/complete", part_ids=[part_id, part_id])
        assert (twice.status, twice.error["param"]) == (400, "part_ids")
        cancelled = await post(inferd, f"/{upload_id}/cancel")
        assert (cancelled.status, cancelled.json["status"]) == (200, "cancelled")
        assert (await post(inferd, f"/{upload_id}/cancel")).json["status"] == "cancelled"
        assert stored(tmp_path) == []
        assert inferd.app.node.files.held("search").files == 0
        over = await post(inferd, f"/{upload_id}/complete", part_ids=[part_id])
        assert over.status == 400


async def test_what_makes_no_file(tmp_path: Path) -> None:
    async with serving(tmp_path, bytes_max=1_000, team_bytes_max=1_500) as inferd:
        upload_id = await begun(inferd, 3)
        no_json = (await send_part(inferd, upload_id, b"PK\3")).json["id"]
        answer = await post(inferd, f"/{upload_id}/complete", part_ids=[no_json])
        assert "Must be .jsonl" in answer.error["message"]
        body = {"bytes": 9, "filename": "a.jsonl", "mime_type": "x", "purpose": "batch"}
        for change, code, status in (
            ({"bytes": 1_001}, "integer_above_max_value", 400),
            ({"bytes": None}, "missing_required_parameter", 400),
            ({"filename": "a.txt"}, None, 400),
            ({"purpose": "vision"}, "invalid_value", 400),
            ({"expires_after": {"anchor": "x", "seconds": 3_600}}, "invalid_value", 400),
            ({"more": 1}, "unknown_parameter", 400),
        ):
            refused = await post(inferd, "", **{**body, **change})
            assert (refused.status, refused.error["code"]) == (status, code), refused.body
        await send_part(inferd, await begun(inferd, 900), LINE * 10)
        full = await post(inferd, "", **{**body, "bytes": 800})
        assert (full.status, full.error["code"]) == (403, "file_quota_exceeded")


async def test_another_teams_upload_is_unknown(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd:
        upload_id = await begun(inferd, 3)
        key = await inferd.new_key("ads")
        async with inferd.openai(api_key=key) as theirs:
            with pytest.raises(openai.NotFoundError):
                await theirs.uploads.parts.create(upload_id, data=b"x")
            with pytest.raises(openai.NotFoundError):
                await theirs.uploads.complete(upload_id, part_ids=["part_0"])
            with pytest.raises(openai.NotFoundError):
                await theirs.uploads.cancel(upload_id)
        assert stored(tmp_path) == []


async def test_an_upload_that_takes_too_long_expires_with_its_parts(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd:
        upload_id = await begun(inferd, 3)
        await send_part(inferd, upload_id, b"{}\n")
        node = inferd.app.node
        await node.db.write(lambda cursor: cursor.execute("UPDATE uploads SET expires_us = 1"))
        late = await send_part(inferd, upload_id, b"x")
        assert "expired" in late.error["message"]
        await node.files.expire()
        assert stored(tmp_path) == []
        assert node.files.held("search").files == 0
