"""Workers that hang, lose a part or grow: fake engines as real processes, watched from outside."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from inferd import clock
from inferd.config.watchdog import Watchdog
from inferd.errors import WorkerUnreachable
from inferd.workers import engine
from inferd.workers.process import session_members
from inferd.workers.spec import WorkerSpec
from inferd.workers.states import WorkerState
from tests.process.test_worker_life import CHAT, LONG
from tests.process.worker_rig import ID, Rig, read_on, running, until

pytestmark = pytest.mark.real_time(timeout_s=60)

S = WorkerState


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STOP_GRACE_S", 1.0)


def watched(spec: WorkerSpec, **limits: Any) -> WorkerSpec:
    """The spec with a watchdog that is soon sure."""
    watchdog = Watchdog.model_validate({"silence_s": 2.0, "unanswered_s": 2.0, **limits})
    return replace(spec, watchdog=watchdog)


async def post(rig: Rig, path: str, body: dict[str, Any]) -> None:
    """To the engine itself, past the gateway."""
    key = {"Authorization": f"Bearer {rig.worker._api_key}"}
    async with (
        aiohttp.ClientSession(headers=key) as session,
        session.post(f"{rig.worker.client.url}{path}", json=body) as answer,
    ):
        assert answer.status == 200


async def arm(rig: Rig, kind: str, **parameters: Any) -> None:
    await post(rig, "/fake/fault", {"kind": kind, **parameters})


def decisions(rig: Rig, decision: str) -> float:
    return rig.sample("inferd_watchdog_decisions_total", worker=ID, decision=decision) or 0.0


async def told_while_reading(rig: Rig, meanwhile: Any) -> float:
    """Read a stream, do something to its engine, be told; seconds from then on."""
    client = rig.worker.client
    async with client.exchange(CHAT, LONG) as exchange:
        assert await exchange.head() == 200
        await exchange.read()
        began = clock.monotonic()
        await meanwhile()
        with pytest.raises(WorkerUnreachable):
            await read_on(exchange)
        return clock.monotonic() - began


async def test_an_engine_that_is_healthy_but_silent_is_given_up_with_the_evidence(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(watched(rig.spec(speed=1.0)))])
        await rig.diary.entered(S.READY)
        lost = rig.worker
        took_s = await told_while_reading(rig, lambda: arm(rig, "frozen"))
        await rig.diary.entered(S.FAILED)
        assert 1.9 < took_s < 5
        assert lost.reason.startswith("it hangs: 1 answers owed, 1 of them begun; no sign of")
        assert "its load report stands still" in lost.reason
        assert rig.diary.suspicions == [True]
        assert decisions(rig, "suspected") == decisions(rig, "hung") == 1
        await rig.diary.entered(S.READY, times=2)
        assert session_members(lost.pid) == []


async def test_a_part_that_is_killed_is_noticed_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        parts = {"kind": "parts", "count": 8}
        rig.supervisor.apply([rig.pool(watched(rig.spec(parts, speed=1.0)))])
        await rig.diary.entered(S.READY)
        lost = rig.worker
        child = max(session_members(lost.pid))

        async def kill() -> None:
            os.kill(child, signal.SIGKILL)

        took_s = await told_while_reading(rig, kill)
        await rig.diary.entered(S.FAILED)
        assert took_s < 2
        assert f"({child}) is gone" in lost.reason
        assert lost.reason.startswith("a part of it died: its process sglang::scheduler_TP")


@pytest.mark.parametrize("whole", [True, False])
async def test_an_engine_that_is_stopped_by_a_signal_is_ended_with_work_or_without(
    tmp_path: Path, whole: bool
) -> None:
    async with running(tmp_path) as rig:
        parts = {"kind": "parts", "count": 2}
        rig.supervisor.apply([rig.pool(watched(rig.spec(parts)))])
        await rig.diary.entered(S.READY)
        lost = rig.worker
        members = session_members(lost.pid)
        for pid in members if whole else [max(members)]:
            os.kill(pid, signal.SIGSTOP)
        await rig.diary.entered(S.FAILED)
        assert lost.reason.startswith("it is stopped: its process")
        await rig.diary.entered(S.READY, times=2)
        assert session_members(lost.pid) == []


async def test_an_idle_engine_that_answers_nothing_is_unreachable(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(watched(rig.spec()))])
        await rig.diary.entered(S.READY)
        await arm(rig, "hang")
        await rig.diary.entered(S.FAILED)
        assert "without any work it has not answered a probe for" in rig.diary.reasons()[0]


async def test_an_idle_engine_that_generates_nothing_is_found_by_the_one_dear_probe(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(watched(rig.spec(), health_idle_s=0.5))])
        await rig.diary.entered(S.READY)
        await post(rig, "/pause_generation", {"mode": "in_place"})
        await rig.diary.entered(S.FAILED)
        assert rig.diary.reasons() == [
            "it generates nothing: idle, it did not make a single token when asked twice for one"
        ]


async def test_a_long_prompt_that_blocks_every_probe_is_no_hang(tmp_path: Path) -> None:
    """The fake's probes wait while it computes a prompt, for longer than is allowed without one."""
    prompt = "word " * 3_000
    body = {"model": "chat", "messages": [{"role": "user", "content": prompt}], "max_tokens": 4}
    async with running(tmp_path) as rig:
        spec = watched(rig.spec({"kind": "block_probes"}, speed=1.0), silence_s=1.0)
        rig.supervisor.apply([rig.pool(spec)])
        await rig.diary.entered(S.READY)
        rig.expect(backlog_s=2.0)
        began = clock.monotonic()
        async with rig.worker.client.exchange(CHAT, orjson.dumps(body)) as exchange:
            assert await exchange.head() == 200
            assert await exchange.read_all()
        assert clock.monotonic() - began > 2, "longer than is allowed without a prompt"
        assert rig.diary.reasons() == []
        assert rig.worker.state is S.READY


async def test_a_worker_that_grows_too_large_drains_and_is_started_again(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        spec = watched(rig.spec({"kind": "parts", "count": 8}))
        rig.supervisor.apply([rig.pool(spec)])
        await rig.diary.entered(S.READY)
        resident = "inferd_worker_resident_bytes"
        await until("memory is known", lambda: rig.sample(resident, worker=ID))
        assert (rig.sample(resident, worker=ID) or 0) > 67_108_864
        limits = spec.watchdog.model_copy(update={"memory_bytes_max": 67_108_864})
        rig.supervisor.apply([rig.pool(replace(spec, watchdog=limits))])
        await rig.diary.entered(S.FAILED)
        assert rig.diary.states()[-2:] == ["draining", "failed"]
        assert rig.diary.reasons()[0].startswith("it has grown too large: its processes hold")
        assert decisions(rig, "oversized") == 1


async def test_who_only_logs_kills_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(watched(rig.spec(speed=1.0), act="log"))])
        await rig.diary.entered(S.READY)
        asked = rig.worker.client.exchange(CHAT, LONG)
        async with asyncio.TaskGroup() as group, asked as exchange:
            assert await exchange.head() == 200
            reading = group.create_task(read_on(exchange))
            await arm(rig, "frozen")
            await until("it is told", lambda: decisions(rig, "hung") == 1)
            assert rig.worker.state is S.READY
            assert rig.diary.suspicions == []
            await arm(rig, "clear")
            reading.cancel()


async def test_a_worker_given_up_shows_the_end_of_its_output(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        broken = {"kind": "exit_at_start", "message": "RuntimeError: the flux is inverted"}
        rig.supervisor.apply([rig.pool(rig.spec(broken, restarts_per_hour_max=0))])
        await rig.diary.entered(S.FAILED)
        await until("it is given up", lambda: rig.worker.outlook)
        assert rig.worker.outlook.endswith("the end of its output: " + rig.worker.last_lines[-1])
        assert "the flux is inverted" in rig.worker.outlook
