"""Every fault of the fake engine does what its name says: other tests build on that."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.contract.client import Client, transcript
from tests.contract.raw_http import CutShort, RawAnswer
from tests.fake_engine.faults import KINDS
from tests.fakes.engines import RunningEngine, fake_engine, launch_fake

pytestmark = pytest.mark.real_time

HEALTHY = {"running": 0, "waiting": 0}


@asynccontextmanager
async def faulty(
    folder: Path, kind: str, *arguments: str, **parameters: Any
) -> AsyncIterator[tuple[RunningEngine, Client]]:
    async with fake_engine(folder, *arguments) as engine:
        await engine.fault(kind, **parameters)
        yield engine, Client(engine.process)


async def streamed(client: Client, **more: Any) -> RawAnswer:
    body = client.chat(max_tokens=12, ignore_eos=True, stream=True, **more)
    return await client.ask({**body, "stream_options": {"include_usage": True}})


async def test_unknown_faults_are_refused_by_name(tmp_path: Path) -> None:
    async with fake_engine(tmp_path) as engine:
        answer = await Client(engine.process).post("/fake/fault", {"kind": "flood"})
        assert answer.status == 400
        assert all(kind in answer.text for kind in KINDS)


async def test_times_and_match_choose_the_requests(tmp_path: Path) -> None:
    async with faulty(tmp_path, "error", times=1, match="unlucky") as (_, client):
        assert (await client.ask(client.chat("lucky", max_tokens=1))).status == 200
        refused = await client.ask(client.chat("unlucky", max_tokens=1))
        assert refused.status == 500
        assert "CUDA error" in orjson.loads(refused.body)["message"]
        assert (await client.ask(client.chat("unlucky", max_tokens=1))).status == 200


@pytest.mark.parametrize("clean", [True, False])
async def test_cut(tmp_path: Path, clean: bool) -> None:
    async with faulty(tmp_path, "cut", after=4, clean=clean) as (engine, client):
        answer = await streamed(client)
        told = transcript(answer.text)
        assert answer.complete is clean
        assert len(told.events) == 4
        assert not told.done
        await engine.until(**HEALTHY)


async def test_reset(tmp_path: Path) -> None:
    async with faulty(tmp_path, "reset", after=3) as (engine, client):
        async with client.stream(client.chat(max_tokens=50)) as stream:
            await stream.started()
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await stream.rest()
        await engine.until(**HEALTHY)


async def test_reset_before_the_first_byte(tmp_path: Path) -> None:
    async with faulty(tmp_path, "reset") as (_, client):
        with pytest.raises(CutShort):
            await streamed(client)


async def test_crash(tmp_path: Path) -> None:
    async with faulty(tmp_path, "crash", after=3) as (engine, client):
        answer = await streamed(client)
        assert not answer.complete
        assert await engine.exited() == -signal.SIGKILL


async def test_silent(tmp_path: Path) -> None:
    async with faulty(tmp_path, "silent", after=3) as (engine, client):
        async with client.stream(client.chat(max_tokens=50)) as stream:
            await stream.started()
            for _ in range(3):
                assert await stream.frame()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await stream.frame()
            assert (await client.get("/health")).status == 200
            assert (await engine.stats())["running"] == 1
        await engine.until(**HEALTHY)


async def test_frozen(tmp_path: Path) -> None:
    async with faulty(tmp_path, "frozen") as (engine, client), asyncio.TaskGroup() as group:
        waiting = group.create_task(client.told(client.chat(max_tokens=2)))
        await engine.until(live=lambda ids: len(ids) == 1)
        assert (await client.get("/health")).status == 200
        assert (await client.get("/ready")).status == 200
        assert not waiting.done()
        await engine.fault("clear")
        assert (await waiting).done


@pytest.mark.parametrize("probes", [True, False])
async def test_hang(tmp_path: Path, probes: bool) -> None:
    async with faulty(tmp_path, "hang", probes=probes) as (_, client):
        for path, answered in (("/ready", probes), ("/v1/loads", probes), ("/v1/models", False)):
            try:
                async with asyncio.timeout(0.3):
                    assert (await client.get(path)).status == 200
                    assert answered, path
            except TimeoutError:
                assert not answered, path


async def test_scheduler_death(tmp_path: Path) -> None:
    async with faulty(tmp_path, "scheduler_death") as (engine, client):
        asked = await asyncio.gather(
            streamed(client), client.get("/health"), return_exceptions=True
        )
        assert all(isinstance(one, CutShort) for one in asked)
        assert await engine.exited() == -signal.SIGKILL


async def test_garbage_is_one_frame_among_good_ones(tmp_path: Path) -> None:
    async with faulty(tmp_path, "garbage", after=2, data="{nonsense") as (_, client):
        events = (await streamed(client)).text.split("\n\n")
        assert events[2] == "data: {nonsense"
        assert events[-2] == "data: [DONE]"


async def test_not_http(tmp_path: Path) -> None:
    async with faulty(tmp_path, "not_http") as (engine, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        body = b'{"stream":true,"messages":[{"role":"user","content":"hi"}]}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\n"
        writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert not (await reader.read()).startswith(b"HTTP/")
        writer.close()


async def test_empty(tmp_path: Path) -> None:
    async with faulty(tmp_path, "empty") as (_, client):
        answer = await streamed(client)
        assert (answer.status, answer.body, answer.complete) == (200, b"", True)


async def test_error_frame(tmp_path: Path) -> None:
    async with faulty(tmp_path, "error_frame", after=3, message="out of memory") as (_, client):
        told = transcript((await streamed(client)).text)
        assert told.error is not None
        assert told.error["message"] == "out of memory"
        assert len(told.events) == 4
        assert told.done


async def test_crlf(tmp_path: Path) -> None:
    async with faulty(tmp_path, "crlf") as (_, client):
        text = (await streamed(client)).text
        assert text.endswith("data: [DONE]\r\n\r\n")
        assert transcript(text.replace("\r\n", "\n")).done


async def test_batch(tmp_path: Path) -> None:
    async with (
        faulty(tmp_path, "batch", frames=4) as (_, client),
        client.stream(client.chat(max_tokens=12, ignore_eos=True)) as stream,
    ):
        await stream.started()
        first = await stream.frame()
        assert first is not None
        assert first.count(b"\n\n") == 4
        assert (await stream.rest()).done


async def test_dribble_sends_each_byte_alone(tmp_path: Path) -> None:
    async with faulty(tmp_path, "dribble", seconds=0) as (_, client):
        told = transcript((await streamed(client)).text)
        assert told.usage["completion_tokens"] == 12
        assert told.done


@pytest.mark.parametrize("mode", ["zero", "missing"])
async def test_usage(tmp_path: Path, mode: str) -> None:
    async with faulty(tmp_path, "usage", mode=mode) as (_, client):
        told = transcript((await streamed(client)).text)
        whole = orjson.loads((await client.ask(client.chat(max_tokens=2))).body)
        if mode == "zero":
            assert told.usage["total_tokens"] == whole["usage"]["total_tokens"] == 0
        else:
            assert all("usage" not in event for event in [*told.events, whole])


async def test_slow_first_holds_its_slot(tmp_path: Path) -> None:
    async with faulty(tmp_path, "slow_first", seconds=0.4) as (engine, client):
        began = asyncio.get_running_loop().time()
        async with client.stream(client.chat(max_tokens=2)) as stream:
            await engine.until(running=1)
            await stream.started()
            assert asyncio.get_running_loop().time() - began >= 0.4
            assert (await stream.rest()).done


async def test_huge(tmp_path: Path) -> None:
    async with faulty(tmp_path, "huge", after=2, bytes=300_000) as (_, client):
        text = (await streamed(client)).text
        assert max(len(event) for event in text.split("\n\n")) > 300_000
        assert transcript(text).done


async def test_ignored_disconnects_and_aborts_keep_the_slot(tmp_path: Path) -> None:
    async with fake_engine(tmp_path, speed=1) as engine:
        await engine.fault("ignore_disconnect")
        await engine.fault("ignore_abort")
        client = Client(engine.process)
        async with client.stream(client.holding(rid="kept")) as stream:
            await stream.started()
            await client.abort(rid="kept")
        stats = await engine.until(disconnected=1)
        assert stats["running"] == 1


async def test_probes_wait_while_a_prompt_is_read(tmp_path: Path) -> None:
    async with fake_engine(tmp_path, speed=1) as engine:
        await engine.fault("block_probes")
        client = Client(engine.process)
        async with client.stream(client.chat("word " * 1_500, max_tokens=1)) as stream:
            await engine.until(running=1)
            assert (await client.get("/ready")).status == 200
            async with asyncio.timeout(0.2):
                await stream.started()


@pytest.mark.parametrize("progress", [True, False])
async def test_slow_load(tmp_path: Path, progress: bool) -> None:
    fault = {"kind": "slow_load", "seconds": 0.5, "progress": progress}
    async with fake_engine(tmp_path, faults=[fault]) as engine:
        log = engine.process.log.read_text()
        assert ("shards:" in log) is progress
        assert "ready to roll" in log


async def test_not_ready_at_first(tmp_path: Path) -> None:
    async with fake_engine(tmp_path, "--ready-seconds", "10", speed=10, wait=False) as engine:
        client = Client(engine.process)
        statuses = set[int]()
        async with asyncio.timeout(20):
            while 200 not in statuses:
                try:
                    statuses.add((await client.get("/ready")).status)
                except OSError:
                    await asyncio.sleep(0.02)
        assert statuses == {503, 200}


async def test_exit_at_start_a_number_of_times(tmp_path: Path) -> None:
    counter = tmp_path / "starts"
    fault = {"kind": "exit_at_start", "code": 7, "times": 2, "counter": str(counter)}
    codes = []
    for _ in range(2):
        process = launch_fake(tmp_path, faults=[fault])
        codes.append(await asyncio.to_thread(process.process.wait, 20))
        assert "Not enough memory" in process.log.read_text()
    assert codes == [7, 7]
    async with fake_engine(tmp_path, faults=[fault]):
        assert counter.read_text() == "3"


async def test_orphan_lives_on_in_the_same_session(tmp_path: Path) -> None:
    async with fake_engine(tmp_path, faults=[{"kind": "orphan", "seconds": 60}]) as engine:
        log = engine.process.log.read_text()
        child = int(log.partition("started child ")[2].split()[0])
        engine.signal(signal.SIGKILL)
        await engine.exited()
        assert os.getsid(child) == engine.pid
        os.kill(child, 0)


async def test_what_a_slow_reader_misses_comes_in_one_piece(tmp_path: Path) -> None:
    """30,000 frames are more than the sockets hold: what does not fit is joined, not kept."""
    flags = ("--context-length", "40000", "--max-total-tokens", "60000")
    async with fake_engine(tmp_path, *flags, speed=1_000) as engine:
        client = Client(engine.process)
        body = client.chat(max_tokens=30_000, ignore_eos=True)
        async with client.stream(body) as stream:
            await engine.until(completion_tokens=30_000)
            await stream.started()
            told = await stream.rest()
        assert told.usage["completion_tokens"] == 30_000
        assert len(told.texts) < 29_000
        assert told.done


async def test_multi_byte_text_is_never_cut_inside_a_character(tmp_path: Path) -> None:
    async with fake_engine(tmp_path) as engine:
        client = Client(engine.process)
        told = await client.told(client.chat("emoji and Thai please [tokens 120]", max_tokens=300))
        assert any(ord(char) > 0xFFFF for char in told.text)
        assert any(0x0E00 <= ord(char) < 0x0E80 for char in told.text)
        assert told.usage["completion_tokens"] == 121


async def test_requests_are_kept_with_their_bodies(tmp_path: Path) -> None:
    async with fake_engine(tmp_path) as engine:
        client = Client(engine.process)
        await client.told(client.chat("Remember me", max_tokens=1, rid="seen"))
        stats = await engine.stats()
        (request,) = stats["requests"]
        assert request["body"]["rid"] == "seen"
        assert stats["counts"]["POST /v1/chat/completions"] == 1
