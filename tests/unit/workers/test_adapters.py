"""A worker's adapters. Goal: nobody is answered by another adapter, or by one that was removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from inferd.errors import UnknownModel, UpstreamError, WorkerUnreachable
from inferd.workers.adapters import Adapters
from inferd.workers.client import WorkerClient
from inferd.workers.spec import AdapterSpec

LOAD_S = 1.0
A, B, C = (AdapterSpec(name, f"lora-{name}", Path(f"/adapters/{name}")) for name in "abc")


class Engine(WorkerClient):
    """Loads and unloads in a second each; `broken` folders fail."""

    def __init__(self, *held: str) -> None:
        super().__init__("w", "http://127.0.0.1:1", None)
        self.held = {f"lora-{name}": f"/adapters/{name}" for name in held}
        self.broken: set[str] = set()
        self.calls: list[tuple[str, str]] = []

    async def get(self, path: str, timeout_s: float) -> tuple[int, bytes]:
        assert path == "/v1/models"
        cards = [{"id": name, "parent": "chat"} for name in self.held]
        return 200, orjson.dumps({"data": [{"id": "chat", "parent": None}, *cards]})

    async def post(self, path: str, payload: dict[str, Any], timeout_s: float) -> tuple[int, bytes]:
        name = payload["lora_name"]
        self.calls.append((path, name))
        await asyncio.sleep(LOAD_S)
        if name in self.broken:
            answer = {"error_message": "rank 64", "loaded_adapters": self.held}
            return 400, orjson.dumps(answer)
        if path == "/load_lora_adapter":
            self.held[name] = payload["lora_path"]
        else:
            del self.held[name]
        return 200, orjson.dumps({"error_message": "", "loaded_adapters": self.held})


@asynccontextmanager
async def running(
    engine: Engine, *wanted: AdapterSpec, most: int | None = None
) -> AsyncIterator[Adapters]:
    adapters = Adapters(engine, most)
    adapters.want(wanted)
    async with asyncio.TaskGroup() as group:
        service = group.create_task(adapters.run())
        adapters.start()
        await asyncio.sleep(LOAD_S * 10)
        yield adapters
        service.cancel()


async def test_what_is_wanted_is_loaded_before_anybody_asks() -> None:
    engine = Engine()
    async with running(engine, A, B) as adapters:
        assert adapters.states() == {"a": "loaded", "b": "loaded"}
        assert set(engine.held) == adapters.loaded == {A.key, B.key}
        async with adapters.use(A.key):
            pass
        assert len(engine.calls) == 2


async def test_a_removed_one_is_refused_at_once_and_unloaded_when_its_requests_have_ended() -> None:
    engine = Engine()
    async with running(engine, A, B) as adapters:
        async with adapters.use(A.key):
            adapters.want([B])
            assert adapters.loaded == {B.key}
            with pytest.raises(UnknownModel):
                async with adapters.use(A.key):
                    raise AssertionError("it was removed")
            await asyncio.sleep(LOAD_S * 5)
            assert A.key in engine.held  # its request still runs
        await asyncio.sleep(LOAD_S * 5)
        assert set(engine.held) == {B.key}


async def test_one_that_waits_for_its_load_when_it_is_removed_is_refused() -> None:
    engine = Engine()
    async with running(engine) as adapters, asyncio.TaskGroup() as group:
        adapters.want([A])

        async def ask() -> None:
            with pytest.raises(UnknownModel):
                async with adapters.use(A.key):
                    raise AssertionError("it was removed")

        group.create_task(ask())
        await asyncio.sleep(LOAD_S / 2)
        adapters.want([])
        await asyncio.sleep(LOAD_S * 5)
        assert not engine.held  # what was under way is taken back


async def test_the_least_recently_used_makes_room_unless_somebody_uses_it() -> None:
    engine = Engine()
    async with running(engine, A, B, C, most=2) as adapters:
        assert set(engine.held) == {A.key, B.key}
        async with adapters.use(A.key):
            async with adapters.use(C.key):
                assert set(engine.held) == {A.key, C.key}
            async with adapters.use(B.key):
                assert set(engine.held) == {A.key, B.key}


async def test_nobody_uses_one_while_it_is_unloaded() -> None:
    engine = Engine()
    async with running(engine, A, B, most=1) as adapters, asyncio.TaskGroup() as group:

        async def ask(key: str) -> None:
            async with adapters.use(key):
                assert key in engine.held

        group.create_task(ask(B.key))
        await asyncio.sleep(LOAD_S / 2)
        assert engine.calls[-1] == ("/unload_lora_adapter", A.key)
        assert adapters.loaded == set()
        group.create_task(ask(A.key))


async def test_one_that_cannot_be_unloaded_serves_on() -> None:
    engine = Engine()
    async with running(engine, A, B, most=1) as adapters, asyncio.TaskGroup() as group:
        engine.broken.add(A.key)

        async def ask(key: str) -> None:
            async with adapters.use(key):
                assert key in engine.held

        group.create_task(ask(B.key))
        await asyncio.sleep(LOAD_S / 2)
        await ask(A.key)
        engine.broken.clear()


async def test_who_finds_no_room_waits_until_somebody_leaves() -> None:
    engine = Engine()
    async with running(engine, A, B, most=1) as adapters, asyncio.TaskGroup() as group:
        asked = asyncio.Event()

        async def ask() -> None:
            async with adapters.use(B.key):
                asked.set()

        async with adapters.use(A.key):
            group.create_task(ask())
            await asyncio.sleep(LOAD_S * 10)
            assert not asked.is_set()
        await asked.wait()
        assert set(engine.held) == {B.key}


async def test_one_that_cannot_be_loaded_is_told_and_tried_again_when_asked_for() -> None:
    engine = Engine()
    engine.broken.add(A.key)
    async with running(engine, A, B) as adapters:
        assert adapters.states() == {"a": "rank 64", "b": "loaded"}
        with pytest.raises(WorkerUnreachable) as refused:
            async with adapters.use(A.key):
                raise AssertionError("it cannot be loaded")
        assert "rank" not in refused.value.message  # the engine's words are for operators
        engine.broken.clear()
        async with adapters.use(A.key):
            assert adapters.loaded == {A.key, B.key}


async def test_an_engine_that_ran_before_keeps_what_is_wanted_and_loses_the_rest() -> None:
    engine = Engine("a", "c")
    async with running(engine, A, B):
        assert set(engine.held) == {A.key, B.key}
        assert ("/load_lora_adapter", A.key) not in engine.calls


async def test_a_worker_that_ends_leaves_nobody_waiting() -> None:
    engine = Engine()
    waits = asyncio.Event()

    async def ask(adapters: Adapters) -> None:
        waits.set()
        with pytest.raises(UpstreamError):
            async with adapters.use(A.key):
                raise AssertionError("the worker has ended")

    async with asyncio.TaskGroup() as group:
        adapters = Adapters(engine, None)
        adapters.want([A])
        service = group.create_task(adapters.run())
        group.create_task(ask(adapters))
        await waits.wait()
        await asyncio.sleep(0)
        service.cancel()
