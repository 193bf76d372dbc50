"""inferd is killed, or its disk full, while files come and go. Goal: each row has its bytes."""

from __future__ import annotations

import asyncio
import io
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from inferd.storage.object_store import SEGMENT_BYTES
from tests.fakes.inferd_process import Folder
from tests.fakes.power_cut import Log
from tests.http.test_files import (
    FORM,
    LINE,
    PURPOSE,
    content,
    form,
    part,
    serving,
    stored,
    upload,
    uploaded,
)

pytestmark = pytest.mark.real_time(timeout_s=120)

KILLS = 4
DATA = LINE * (SEGMENT_BYTES // len(LINE) + 9)
BODY = form(PURPOSE, part("file", DATA, "a.jsonl"))


def objects(folder: Folder) -> list[str]:
    return [path.name for path in (folder.path / "files").rglob("*") if path.is_file()]


class Client:
    """Uploads and deletes; knows which files it was told are there and which are gone."""

    def __init__(self, http: aiohttp.ClientSession, url: str, answered: Callable[[], None]) -> None:
        self.http = http
        self.answered = answered
        self.url = f"{url}/files"
        self.uploaded = asyncio.Event()
        self.there: set[str] = set()
        self.gone: set[str] = set()
        self.deleting: set[str] = set()

    async def work(self) -> None:
        """Until the server is gone."""
        try:
            while True:
                headers = {"content-type": FORM}
                async with self.http.post(
                    self.url, data=io.BytesIO(BODY), headers=headers
                ) as answer:
                    told = await answer.json()
                    assert answer.status == 200, told
                    self.there.add(told["id"])
                    self.answered()
                    self.uploaded.set()
                if len(self.there) > 2:
                    await self._delete(min(self.there))
        except aiohttp.ClientError:
            return

    async def _delete(self, file_id: str) -> None:
        self.there.discard(file_id)
        self.deleting.add(file_id)
        async with self.http.delete(f"{self.url}/{file_id}") as answer:
            assert answer.status == 200
        self.answered()
        self.gone.add(file_id)

    async def delete_again(self) -> None:
        """What was not answered for: a log that lost more than a disk loses has the row again."""
        for file_id in sorted(self.deleting - self.gone):
            async with self.http.delete(f"{self.url}/{file_id}") as answer:
                assert answer.status in {200, 404}
            self.gone.add(file_id)

    async def check(self) -> set[str]:
        """What there is, each with all its bytes; nothing that was promised is missing."""
        async with self.http.get(self.url) as answer:
            listed = {one["id"] for one in (await answer.json())["data"]}
        assert self.there <= listed
        assert not self.gone & listed
        for file_id in listed:
            async with self.http.get(f"{self.url}/{file_id}/content") as answer:
                assert await answer.read() == DATA
        self.there = listed - self.deleting
        return listed


@pytest.mark.parametrize("power_fails", [False, True])
async def test_kills_leave_no_row_without_bytes_and_no_bytes_without_a_row(
    tmp_path: Path, *, power_fails: bool
) -> None:
    folder = Folder(tmp_path)
    folder.attach("http://127.0.0.1:9")
    folder.config.write_text(folder.config.read_text() + '\n[files]\nstore = "files"\n')
    rng = random.Random(7)
    key = await folder.key()
    log = Log(folder.state / "inferd.db")
    cuts = []
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as http:
        client = Client(http, folder.base_url, log.answered)
        for _ in range(KILLS):
            async with folder.serving() as serving:
                if power_fails:
                    await client.delete_again()
                await client.check()
                async with asyncio.TaskGroup() as group:
                    for _ in range(3):
                        group.create_task(client.work())
                    client.uploaded.clear()
                    await client.uploaded.wait()
                    await asyncio.sleep(rng.uniform(0.0, 0.3))
                    while power_fails and not log.is_ahead:  # noqa: ASYNC110 - another process
                        await asyncio.sleep(0)
                    serving.process.kill()
            if power_fails:
                cuts.append(log.cut(rng))
        async with folder.serving():
            if power_fails:
                await client.delete_again()
            listed = await client.check()
            assert listed
            async with asyncio.timeout(20):
                while len(objects(folder)) != 2 * len(listed):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.05)
            assert not any("#" in name for name in objects(folder))
    assert any(cuts) == power_fails


async def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as inferd:
        kept = await uploaded(inferd)
        before = stored(tmp_path)
        with disk_for(SEGMENT_BYTES // 2):
            full = await upload(inferd, BODY)
        assert (full.status, full.error["code"]) == (503, "file_store_unavailable")
        assert stored(tmp_path) == before
        assert (await content(inferd, kept)).body == LINE
        assert (await upload(inferd, BODY)).status == 200


@contextmanager
def disk_for(size: int) -> Iterator[None]:
    """No file can grow over `size` bytes: writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
