"""Workers that are asked to end: what they still have is finished, told or billed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import orjson
import pytest

from inferd import clock
from inferd.errors import ShuttingDown
from inferd.workers import engine
from inferd.workers.client import Abandoned
from inferd.workers.process import session_members
from inferd.workers.states import WorkerState
from tests.process.test_worker_life import CHAT, LONG
from tests.process.worker_rig import ID, read_on, running, until

pytestmark = pytest.mark.real_time(timeout_s=60)

S = WorkerState
LONG_BY_ID = orjson.dumps(
    {**orjson.loads(LONG), "rid": "left", "stream_options": {"include_usage": True}}
)


class UsageReader:
    """Reads on until the usage has come."""

    done = False

    def feed(self, data: bytes) -> bytes:
        self.done = self.done or b"[DONE]" in data
        return data


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that ignore a SIGTERM are waited for, but not for 20 s."""
    monkeypatch.setattr(engine, "STOP_GRACE_S", 1.0)


async def test_draining_waits_for_the_leases_and_no_longer(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(rig.spec())])
        await rig.diary.entered(S.READY)
        worker = rig.worker
        rig.leases[ID] = 1
        worker.drain(600.0)
        await rig.diary.entered(S.DRAINING)
        looks = rig.leases.looks
        await until("it looks for leases again", lambda: rig.leases.looks >= looks + 3)
        assert worker.state is S.DRAINING
        assert worker.record.is_current()
        rig.leases[ID] = 0
        await rig.diary.entered(S.STOPPED)


@pytest.mark.parametrize("early", [True, False])
async def test_who_is_in_a_hurry_does_not_wait_for_an_engine_that_will_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    monkeypatch.setattr(engine, "STOP_GRACE_S", 3_600.0)
    async with asyncio.timeout(30), running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(rig.spec())])
        await rig.diary.entered(S.READY)
        os.kill(rig.worker.pid, signal.SIGSTOP)
        if early:
            rig.supervisor.hurry()
        rig.supervisor.stop(0.0)
        await rig.diary.entered(S.DRAINING)
        rig.supervisor.hurry()
        await rig.diary.entered(S.STOPPED)


async def test_the_drain_deadline_ends_what_is_left_with_an_error(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(rig.spec(speed=1.0))])
        await rig.diary.entered(S.READY)
        worker = rig.worker
        rig.leases[ID] = 1
        async with worker.client.exchange(CHAT, LONG) as exchange:
            assert await exchange.head() == 200
            asked_at = clock.monotonic()
            worker.drain(0.5)
            with pytest.raises(ShuttingDown):
                await read_on(exchange)
            assert 0.5 <= clock.monotonic() - asked_at < 5, "not the end of the answer"
        await rig.diary.entered(S.STOPPED)
        assert worker.reason == "drained"


@pytest.mark.parametrize("state", [S.LOADING, S.WARMING])
async def test_a_worker_that_is_let_go_before_it_is_ready_ends_at_once(
    tmp_path: Path, state: WorkerState
) -> None:
    async with running(tmp_path) as rig:
        slow = {"kind": "slow_load", "seconds": 600, "progress": True}
        silent = {"kind": "slow_first", "seconds": 600}
        rig.supervisor.apply([rig.pool(rig.spec(slow if state is S.LOADING else silent))])
        await rig.diary.entered(state)
        pid = rig.worker.pid
        rig.supervisor.apply([])
        await rig.diary.entered(S.STOPPED)
        assert session_members(pid) == []
        assert rig.diary.changes[-1].reason == "let go before it was ready"


async def test_what_a_client_left_is_billed_before_a_drained_engine_is_stopped(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(rig.spec(speed=1.0))])
        await rig.diary.entered(S.READY)
        worker = rig.worker
        reader, settled = UsageReader(), list[bool]()
        async with worker.client.exchange(CHAT, LONG_BY_ID) as exchange:
            assert await exchange.head() == 200
            await exchange.read()
            left = Abandoned(exchange, "left", reader, lambda: settled.append(reader.done))
            worker.client.abandon(left)
        worker.drain(5.0)
        await rig.diary.entered(S.STOPPED)
        assert settled == [True]
