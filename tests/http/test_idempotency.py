"""Idempotency keys: a request sent again makes nothing new, another one under its key fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest

from tests.http.test_files import LINE, serving, stored

pytestmark = pytest.mark.real_time


def under(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key}


async def test_the_same_upload_under_the_same_key_is_the_same_file(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd, inferd.openai() as client:
        other = inferd.openai(api_key=await inferd.new_key("ads"))

        async def upload(key: str, data: bytes = LINE, name: str = "a.jsonl") -> str:
            made = await client.files.create(
                file=(name, data), purpose="batch", extra_headers=under(key)
            )
            return made.id

        first = await upload("k1")
        assert await upload("k1") == first
        assert await upload("k2") != first
        for data, name in ((LINE * 2, "a.jsonl"), (LINE, "b.jsonl")):
            with pytest.raises(openai.ConflictError, match="Idempotency-Key") as refused:
                await upload("k1", data, name)
            assert refused.value.code == "idempotency_key_in_use"
            assert refused.value.response.headers["x-should-retry"] == "false"
        async with other:
            theirs = await other.files.create(
                file=("a.jsonl", LINE), purpose="batch", extra_headers=under("k1")
            )
        assert theirs.id != first
        assert len(stored(tmp_path)) == 3
        await client.files.delete(first)
        assert await upload("k1") != first, "what is gone is made again"
        with pytest.raises(openai.BadRequestError, match="Idempotency-Key"):
            await upload("k" * 256)
        files = [one async for one in client.files.list()]
    assert len(files) == 2


async def test_of_many_at_once_under_one_key_one_is_made(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd, inferd.openai() as client:
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(
                    client.files.create(
                        file=("a.jsonl", LINE * 100), purpose="batch", extra_headers=under("k")
                    )
                )
                for _ in range(8)
            ]
        assert len({task.result().id for task in running}) == 1
        assert len([one async for one in client.files.list()]) == 1
        assert len(stored(tmp_path)) == 1


async def test_the_same_upload_in_parts_is_announced_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd, inferd.openai() as client:

        async def announce(size: int) -> str:
            made = await client.uploads.create(
                bytes=size,
                filename="a.jsonl",
                mime_type="x",
                purpose="batch",
                extra_headers=under("k"),
            )
            return f"{made.id} {made.status}"

        first = await announce(len(LINE))
        assert await announce(len(LINE)) == first
        with pytest.raises(openai.ConflictError, match="Idempotency-Key"):
            await announce(1)
        upload_id = first.split()[0]
        part = await client.uploads.parts.create(upload_id, data=LINE)
        await client.uploads.complete(upload_id, part_ids=[part.id])
        assert await announce(len(LINE)) == f"{upload_id} completed"
