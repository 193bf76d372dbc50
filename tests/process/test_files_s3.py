"""Files in an S3-compatible store, a process. Goal: all is as in a folder, also when it dies."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import aiohttp
import pytest

from inferd.storage.object_store import SEGMENT_BYTES
from tests.fakes.gateway import Gateway, gateway, until
from tests.http.raw_connection import client_of
from tests.http.test_files import FORM, LINE, PURPOSE, content, delete, part, uploaded

pytestmark = pytest.mark.real_time

START_S_MAX = 30.0
HALF = PURPOSE + part("file", LINE * (SEGMENT_BYTES // len(LINE) + 9), "a.jsonl")
ANNOUNCED = {"content-type": FORM, "content-length": "99000000"}
KEY_NAMES = ("STORE_KEY_ID", "STORE_SECRET_KEY")


class Bucket:
    """The bucket `files` of a running store."""

    def __init__(self, url: str, process: asyncio.subprocess.Process) -> None:
        self.url = url
        self._process = process

    async def names(self) -> list[str]:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{self.url}/files?list-type=2") as answer,
        ):
            tree = ET.fromstring(await answer.text())
        return sorted(str(key.text) for key in tree.iter() if key.tag.endswith("}Key"))

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)


@asynccontextmanager
async def running_store(folder: Path) -> AsyncIterator[Bucket]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    program = Path(sys.executable).with_name("moto_server")
    with (folder / "store.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program, "-H", "127.0.0.1", "-p", str(port), stdout=log, stderr=log
        )
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(START_S_MAX):
            while True:
                try:
                    async with http.put(f"{url}/files") as answer:
                        assert answer.status == 200
                        break
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.1)
        yield Bucket(url, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def serving(folder: Path, bucket: Bucket) -> AsyncIterator[Gateway]:
    key_id, secret = KEY_NAMES
    more = f"""
[files]
store = "s3://files/of/inferd"
endpoint = "{bucket.url}"
region = "eu-central-1"
access_key_env = "{key_id}"
secret_key_env = "{secret}"
timeout_s = 2
"""
    nobody: list[Mapping[str, object]] = [{"url": "http://127.0.0.1:9"}]
    async with gateway(folder, workers=nobody, ready=0, more=more) as inferd:
        yield inferd


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEY_NAMES:
        monkeypatch.setenv(name, f"value of {name}".replace(" ", "-"))


async def test_a_store_that_two_inferds_share_and_that_dies(tmp_path: Path) -> None:
    data = LINE * (2 * SEGMENT_BYTES // len(LINE) + 9)
    async with AsyncExitStack() as stack:
        folders = [tmp_path / name for name in ("one", "two")]
        for folder in folders:
            folder.mkdir()
        bucket = await stack.enter_async_context(running_store(tmp_path))
        inferd = await stack.enter_async_context(serving(folders[0], bucket))
        other = await stack.enter_async_context(serving(folders[1], bucket))
        async with inferd.openai() as client:
            made = await client.files.create(file=("a.jsonl", data), purpose="batch")
            assert (await client.files.content(made.id)).content == data
            assert [one.id async for one in client.files.list()] == [made.id]
            theirs = await uploaded(other)
            names = await bucket.names()
            assert len(names) == 4
            assert all(name.startswith("of/inferd/") for name in names)
            assert not any("jsonl" in name for name in names)
            cut = SEGMENT_BYTES - 3
            some = await content(inferd, made.id, range=f"bytes={cut}-{cut + 6}")
            assert some.body == data[cut : cut + 7]
            assert await other.app.node.files.sweep() == 0
            assert (await client.files.delete(made.id)).deleted
            assert len(await bucket.names()) == 1
        ours = await uploaded(inferd)
        await leave_in_the_middle(inferd, bucket)
        await die_in_the_middle(inferd, bucket)
        for file_id, server in ((ours, inferd), (theirs, other)):
            answer = await content(server, file_id)
            assert (answer.status, answer.error["code"]) == (503, "file_store_unavailable")
        # What cannot be deleted now is nobody's any more, and is swept when the store is back.
        assert await delete(inferd, ours) == 200
        assert inferd.app.node.files.held("search").bytes == 0


async def leave_in_the_middle(inferd: Gateway, bucket: Bucket) -> None:
    before = await bucket.names()
    async with client_of(inferd) as client:
        client.request("POST", "/v1/files", headers=ANNOUNCED)
        client.send(HALF)
        async with asyncio.timeout(START_S_MAX):
            while len(await bucket.names()) == len(before):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        client.reset()
    await until(lambda: not inferd.app.node.files._busy)
    assert await bucket.names() == before


async def die_in_the_middle(inferd: Gateway, bucket: Bucket) -> None:
    async with client_of(inferd) as client:
        client.request("POST", "/v1/files", headers=ANNOUNCED)
        client.send(HALF)
        await until(lambda: inferd.app.node.files._busy)
        bucket.kill()
        client.send(LINE * (SEGMENT_BYTES // len(LINE) + 9))
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (503, "file_store_unavailable")
        assert "127.0.0.1" not in answer.error["message"]
