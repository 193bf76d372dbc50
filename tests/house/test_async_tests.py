"""The runner of async tests keeps its promises: virtual time, real time, no task left behind."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from inferd import clock
from tests import conftest
from tests.fakes.async_runner import run_real_time, run_virtual
from tests.fakes.virtual_loop import Deadlock, VirtualTimeLoop


async def test_a_day_passes_in_the_order_of_its_timers() -> None:
    start = clock.monotonic()
    seen: list[str] = []

    async def at(hours: float, word: str) -> None:
        await asyncio.sleep(hours * 3_600)
        seen.append(word)

    async with asyncio.TaskGroup() as group:
        group.create_task(at(24, "night"))
        group.create_task(at(8, "morning"))
        group.create_task(at(16, "evening"))
    assert seen == ["morning", "evening", "night"]
    assert clock.monotonic() - start == 86_400


async def test_many_small_steps_add_up() -> None:
    start = clock.monotonic()
    for _ in range(1_000):
        await asyncio.sleep(0.1)
    assert clock.monotonic() - start == 100


async def test_a_timeout_of_an_hour_fires() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3_600):
            await asyncio.Event().wait()


async def test_virtual_is_the_default() -> None:
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


@pytest.mark.real_time
async def test_real_time_is_uvloop() -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)


@given(st.floats(min_value=0.001, max_value=1e6))
async def test_property_tests_run_on_virtual_time(seconds: float) -> None:
    start = clock.monotonic()
    await asyncio.sleep(seconds)
    assert clock.monotonic() - start == pytest.approx(seconds, abs=1e-8)


def test_rng_is_seeded(rng: random.Random, request: pytest.FixtureRequest) -> None:
    assert rng.random() == random.Random(request.config.getoption("seed")).random()


def test_waiting_for_nothing_is_a_deadlock() -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"(?s)no timer is left.*locks\.py"):
        run_virtual(waits_for_ever)


def test_a_task_left_behind_fails_the_test() -> None:
    async def leaves_a_task() -> None:
        leaked.append(asyncio.create_task(asyncio.sleep(60), name="leaked"))

    leaked: list[asyncio.Task[None]] = []
    with pytest.raises(pytest.fail.Exception, match=r"outlived the test.*leaked"):
        run_virtual(leaves_a_task)


def test_an_error_in_a_callback_fails_the_test() -> None:
    def raises() -> None:
        raise ValueError("lost")

    async def schedules_it() -> None:
        asyncio.get_running_loop().call_soon(raises)
        await asyncio.sleep(0)

    with pytest.raises(pytest.fail.Exception, match="lost"):
        run_virtual(schedules_it)


def test_an_async_fixture_is_refused_by_name() -> None:
    async def opened() -> None: ...

    with pytest.raises(pytest.fail.Exception, match="opened is an async fixture"):
        conftest.pytest_fixture_setup(SimpleNamespace(argname="opened", func=opened))


def test_real_time_has_a_limit() -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run_real_time(hangs, timeout_s=0.01)
