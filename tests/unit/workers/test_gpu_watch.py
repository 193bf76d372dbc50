"""Devices are judged by what they say. Goal: bad ones go, with the reason, and only they."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from inferd.metrics import Metrics
from inferd.workers.gpu_watch import LOOK_S, GpuWatch
from inferd.workers.gpus import Gpus
from tests.fakes.fake_gpus import GIB, FakeGpuLibrary


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time knows no threads; what runs in one touches nothing of the loop's."""

    async def inline(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", inline)


class Machine:
    def __init__(self, count: int = 2) -> None:
        self.library = FakeGpuLibrary(count)
        self.registry = CollectorRegistry()
        self.gpus = Gpus(map(str, range(count)), library=self.library)
        self.watch = GpuWatch(self.gpus, Metrics(self.registry))

    async def looked_at(self, during: Callable[[], Awaitable[None]]) -> None:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self.watch.run())
            await asyncio.sleep(LOOK_S / 2)
            await during()
            watching.cancel()

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"inferd_gpu_{name}", labels)


async def a_look() -> None:
    await asyncio.sleep(LOOK_S)


async def test_a_sound_device_is_shown_and_left_alone() -> None:
    machine = Machine()
    machine.library.set(1, temperature_c=70, utilization=0.5, memory_used_bytes=3 * GIB)
    machine.library.report(1, 31)

    async def hot_for_two_looks() -> None:
        machine.library.set(1, overheated=True)
        await a_look()
        await a_look()
        machine.library.set(1, overheated=False)
        await a_look()

    await machine.looked_at(hot_for_two_looks)
    assert machine.gpus.quarantined == {}
    assert machine.sample("temperature_celsius", gpu="1") == 70
    assert machine.sample("utilization", gpu="1") == 0.5
    assert machine.sample("memory_used_bytes", gpu="1") == 3 * GIB
    assert machine.sample("events_total", gpu="1", kind="xid") == 1


@pytest.mark.parametrize(
    ("changes", "reason", "kind"),
    [
        ({"ecc_uncorrected": 2}, "2 uncorrected errors in its memory since the start", "ecc"),
        ({"remap_failed": True}, "a broken row of its memory cannot be replaced", "remap"),
        (
            {"overheated": True, "temperature_c": 93},
            "it is so hot (93 °C) that it slows itself down",
            "heat",
        ),
    ],
)
async def test_a_bad_one_is_put_in_quarantine(
    changes: dict[str, Any], reason: str, kind: str
) -> None:
    machine = Machine()

    async def turn_bad() -> None:
        machine.library.set(1, **changes)
        for _ in range(4):
            await a_look()

    await machine.looked_at(turn_bad)
    assert machine.gpus.quarantined == {"1": reason}
    assert machine.sample("quarantined", gpu="1") == 1
    assert machine.sample("quarantined", gpu="0") == 0
    assert machine.sample("events_total", gpu="1", kind=kind) == 1


async def test_errors_of_before_are_not_held_against_it() -> None:
    machine = Machine()
    machine.library.set(0, ecc_uncorrected=7)
    await machine.looked_at(a_look)
    assert machine.gpus.quarantined == {}


async def test_one_that_is_lost_or_reports_an_error_of_its_own_goes() -> None:
    machine = Machine(3)

    async def lose() -> None:
        machine.library.lost.add("GPU-0000")
        machine.library.report(1, 79)
        machine.library.report(1, 43)
        await a_look()

    await machine.looked_at(lose)
    assert machine.gpus.quarantined == {
        "0": "the driver cannot reach it any more",
        "1": "Xid 79: it has fallen off the bus",
    }
    assert machine.sample("events_total", gpu="1", kind="xid") == 2
    assert machine.gpus.free == 1


async def test_memory_is_waited_for_and_what_is_kept_is_lent_to_nobody() -> None:
    machine = Machine()
    machine.library.set(0, memory_used_bytes=2 * GIB)  # another program's

    async def end_an_engine() -> None:
        with machine.gpus.claim(2):
            machine.library.set(0, memory_used_bytes=70 * GIB)
            machine.library.set(1, memory_used_bytes=70 * GIB)
            asyncio.get_running_loop().call_later(
                3.0, lambda: machine.library.set(0, memory_used_bytes=2 * GIB)
            )
            began = asyncio.get_running_loop().time()
            await machine.gpus.returned(["0"])
            assert 3.0 <= asyncio.get_running_loop().time() - began < 4.0
            await machine.gpus.returned(["1"])
        assert machine.gpus.free == 1
        assert machine.gpus.quarantined["1"].startswith(
            "its memory was not given back: 70.0 GiB are in use 30 s after"
        )
        machine.library.set(1, memory_used_bytes=0)
        await a_look()
        assert machine.gpus.free == 2

    await machine.looked_at(end_an_engine)


async def test_without_a_library_nothing_is_waited_for() -> None:
    gpus = Gpus("01")
    await gpus.returned(["0", "1"])
    watch = GpuWatch(gpus, Metrics(CollectorRegistry()))
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch.run())
        await a_look()
        watching.cancel()
    assert gpus.free == 2


async def test_a_next_engine_is_not_forgiven_what_the_last_one_had() -> None:
    machine = Machine(1)

    async def two_engines() -> None:
        with machine.gpus.claim(1):
            machine.library.set(0, memory_used_bytes=70 * GIB)
            await a_look()
            machine.library.set(0, memory_used_bytes=0)
            await machine.gpus.returned(["0"])
        with machine.gpus.claim(1):  # before the watch has looked again
            machine.library.set(0, memory_used_bytes=60 * GIB)
            await machine.gpus.returned(["0"])
        assert machine.gpus.free == 0, "its memory was not given back"

    await machine.looked_at(two_engines)


async def test_what_others_had_in_use_before_the_first_look_is_theirs() -> None:
    library = FakeGpuLibrary(1)
    library.set(0, memory_used_bytes=5 * GIB)
    gpus = Gpus("0", library=library)
    with gpus.claim(1):  # workers start before the watch has looked
        library.set(0, memory_used_bytes=70 * GIB)
        library.set(0, memory_used_bytes=5 * GIB)
        await gpus.returned(["0"])
    assert gpus.free == 1
