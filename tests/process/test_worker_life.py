"""Lives of spawned workers, with fake engines as real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
from dataclasses import replace
from pathlib import Path

import aiohttp
import orjson
import pytest

from inferd import clock
from inferd.errors import WorkerUnreachable
from inferd.provision import model_folder
from inferd.workers import engine
from inferd.workers.output_log import follow
from inferd.workers.process import session_members
from inferd.workers.states import WorkerState
from tests.process.worker_rig import ID, read_on, running, until

pytestmark = pytest.mark.real_time(timeout_s=60)

S = WorkerState


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that ignore a SIGTERM are waited for, but not for 20 s."""
    monkeypatch.setattr(engine, "STOP_GRACE_S", 1.0)


A_LIFE = ["spawning", "loading", "warming", "ready"]
CHAT = "/v1/chat/completions"
LONG = orjson.dumps(
    {
        "model": "chat",
        "messages": [{"role": "user", "content": "Tell me a very long story."}],
        "max_tokens": 2_000,
        "ignore_eos": True,
        "stream": True,
    }
)


def of_process(pid: int, name: str) -> str:
    return (Path("/proc") / str(pid) / name).read_text()


async def test_a_life_from_spawn_to_drain(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(rig.spec())])
        await rig.diary.entered(S.READY)
        worker = rig.worker
        assert rig.diary.states() == A_LIFE
        assert worker.record.is_current()
        assert worker.record.pid == worker.pid == os.getsid(worker.pid)
        assert worker.record.spec_hash == worker.spec.spec_hash
        assert worker.inflight_max == 16
        pid = worker.pid
    assert rig.diary.states() == [*A_LIFE, "draining", "stopped"]
    assert session_members(pid) == []
    assert rig.supervisor.workers == {}


async def test_the_warm_up_is_booked_to_the_token(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(rig.spec(speed=5.0))])
        await rig.diary.entered(S.READY)
        ((worker_id, usage, ttft_s, tpot_s),) = rig.diary.warm_ups
        status, body = await rig.worker.client.get(engine.METRICS_PATH, 5.0)
        assert status == 200
        counters = engine.parse_counters(body.decode())
    assert worker_id == ID
    assert usage.prompt_tokens == counters.prompt_tokens > 0
    assert usage.completion_tokens == counters.completion_tokens == 16 + 1 + 17
    assert usage.cached_tokens == counters.cached_tokens
    assert ttft_s > 0
    assert tpot_s >= 0


async def test_loads_are_reported_while_ready(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(rig.spec(speed=1.0))])
        await rig.diary.entered(S.READY)
        worker = rig.worker
        assert worker.loads is None  # not asked yet: unknown, not idle
        asked = worker.client.exchange(CHAT, LONG)
        async with asyncio.TaskGroup() as group, asked as exchange:
            assert await exchange.head() == 200
            reading = group.create_task(read_on(exchange))
            await until(
                "a report of the load", lambda: rig.worker.loads and rig.worker.loads.running
            )
            loads = rig.worker.loads
            assert loads.running == 1
            assert loads.total_tokens > 0
            assert rig.sample("inferd_kv_utilization", worker=ID) == loads.kv_utilization
            reading.cancel()


async def test_the_key_guards_the_engine_and_shows_nowhere(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(rig.spec())])
        await rig.diary.entered(S.LOADING)
        worker = rig.worker
        key_file = rig.folder / ID / "engine.yaml"
        assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
        key = orjson.loads(key_file.read_bytes())["api-key"]
        await rig.diary.entered(S.READY)
        assert not key_file.exists()
        assert key not in of_process(worker.pid, "cmdline")
        assert key not in of_process(worker.pid, "environ")
        async with aiohttp.ClientSession() as session:
            asked = session.post(worker.client.url + CHAT, data=LONG)
            async with asked as answer:
                assert answer.status == 401
        shown = [line async for line in follow(worker.output_path, lines=10_000, follow=False)]
    assert any("server_args" in line for line in shown)
    assert not any(key in line for line in shown)


async def test_an_engine_that_exits_three_times_and_then_works(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        flaky = {"kind": "exit_at_start", "times": 3, "counter": str(tmp_path / "starts")}
        rig.supervisor.apply([rig.pool(rig.spec(flaky))])
        await rig.diary.entered(S.READY)
        assert rig.diary.states() == ["spawning", "loading", "failed"] * 3 + A_LIFE
        assert all("exited with code 1: the GPU has too little" in r for r in rig.diary.reasons())
        assert rig.worker.last_failure == rig.diary.reasons()[-1]


async def test_the_ceiling_of_restarts_and_the_way_back(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        broken = {
            "kind": "exit_at_start",
            "times": 3,
            "counter": str(tmp_path / "starts"),
            "message": "ModuleNotFoundError: No module named 'torch'",
        }
        spec = rig.spec(broken, restarts_per_hour_max=2)
        rig.supervisor.apply([rig.pool(spec)])
        await rig.diary.entered(S.FAILED, times=3)
        await until("it is given up", lambda: rig.worker.outlook.startswith("given up"))
        assert rig.diary.states().count("spawning") == 3
        assert rig.worker.outlook.startswith("given up after 2 restarts within an hour")
        assert "lacks the package torch: run `inferd engine install`" in rig.worker.reason
        rig.supervisor.restart(ID)
        await rig.diary.entered(S.READY)
        assert rig.diary.states().count("spawning") == 4


async def test_a_load_that_hangs_fails_with_where_it_hung(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        hung = {"kind": "slow_load", "seconds": 600, "progress": False}
        rig.supervisor.apply([rig.pool(rig.spec(hung, load_stall_s=2.0, restarts_per_hour_max=0))])
        await rig.diary.entered(S.FAILED)
        pid = rig.worker.pid
        (reason,) = rig.diary.reasons()
        assert reason.startswith("no progress for 2 s while loading weights: Load weight begin.")
        await until("its processes are gone", lambda: not session_members(pid))


@pytest.mark.slow
async def test_a_load_that_gets_on_may_take_as_long_as_it_wants(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        slow = {"kind": "slow_load", "seconds": 7, "progress": True}
        start = clock.monotonic()
        rig.supervisor.apply([rig.pool(rig.spec(slow, load_stall_s=2.0))])
        await rig.diary.entered(S.LOADING)
        shards = "Loading safetensors checkpoint shards"
        await until("progress is shown", lambda: shards in rig.worker.progress)
        assert rig.worker.progress.startswith("loading weights: Loading safetensors")
        await rig.diary.entered(S.READY)
        assert clock.monotonic() - start >= 7
        assert rig.diary.reasons() == []
        assert rig.worker.progress == ""


async def test_who_waits_for_an_engine_that_dies_is_told_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(rig.spec(speed=1.0))])
        await rig.diary.entered(S.READY)
        lost, client = rig.worker, rig.worker.client
        async with client.exchange(CHAT, LONG) as exchange:
            assert await exchange.head() == 200
            await exchange.read()
            killed_at = clock.monotonic()
            os.kill(lost.pid, signal.SIGKILL)
            with pytest.raises(WorkerUnreachable):
                await read_on(exchange)
        await rig.diary.entered(S.FAILED)
        assert clock.monotonic() - killed_at < 5, "by the death itself, not by a probe or silence"
        assert lost.reason.startswith("the engine was killed by SIGKILL, perhaps by the kernel")
        await rig.diary.entered(S.READY, times=2)
        assert rig.worker is not lost
        assert rig.worker.pid != lost.pid
        assert rig.sample("inferd_worker_state", worker=ID, state="failed") == 0
        assert rig.sample("inferd_worker_state", worker=ID, state="ready") == 1


async def test_an_engine_that_lost_a_part_is_given_up_before_it_ends(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(rig.spec(speed=1.0))])
        await rig.diary.entered(S.READY)
        lost = rig.worker
        with lost.output_path.open("a") as output:
            output.write("[2026-11-30 23:44:03] Subprocess scheduler_0 (pid=7) crashed with exit")
            output.write(" code -9. Triggering SIGQUIT for cleanup...\n")
        async with lost.client.exchange(CHAT, LONG) as exchange:
            with pytest.raises(WorkerUnreachable):
                await read_on(exchange)
        await rig.diary.entered(S.FAILED)
        assert (
            lost.reason == "its process scheduler_0 died: see the lines before that in its output"
        )
        await rig.diary.entered(S.READY, times=2)


async def test_nobody_of_a_life_is_left_when_the_next_begins(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(rig.spec({"kind": "orphan", "seconds": 600}))])
        await rig.diary.entered(S.READY)
        pid = rig.worker.pid
        assert len(session_members(pid)) == 2
        os.kill(pid, signal.SIGKILL)
        await rig.diary.entered(S.FAILED)
        assert len(session_members(pid)) == 1
        await rig.diary.entered(S.SPAWNING, times=2)
        assert session_members(pid) == []


@pytest.mark.parametrize("state", [S.LOADING, S.WARMING, S.READY])
async def test_a_cancelled_supervisor_leaves_nothing(tmp_path: Path, state: WorkerState) -> None:
    pids: list[int] = []

    async def run() -> None:
        async with running(tmp_path) as rig:
            faults = [{"kind": "orphan", "seconds": 600}]
            faults += [{"kind": "slow_first", "seconds": 600}] if state is S.WARMING else []
            rig.supervisor.apply([rig.pool(rig.spec(*faults))])
            await rig.diary.entered(state)
            pids.append(rig.worker.pid)
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run())
        await until("the state is reached", lambda: pids)
        await until("its child is there", lambda: len(session_members(pids[0])) == 2)
        task.cancel()
    assert session_members(pids[0]) == []


async def test_a_port_that_was_taken_is_named_and_another_one_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_port = engine.free_port
    with socket.socket() as taken:
        taken.bind((engine.HOST, 0))
        taken.listen()
        ports = [taken.getsockname()[1]]
        monkeypatch.setattr(engine, "free_port", lambda: ports.pop() if ports else free_port())
        async with running(tmp_path) as rig:
            rig.supervisor.apply([rig.pool(rig.spec())])
            await rig.diary.entered(S.READY)
            (reason,) = rig.diary.reasons()
            assert "its port was taken by another program" in reason
            assert rig.worker.port != taken.getsockname()[1]


async def test_a_warm_up_that_fails_is_not_served_to_anybody(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        refuses = {"kind": "error", "status": 500, "message": "boom", "type": "x"}
        rig.supervisor.apply([rig.pool(rig.spec(refuses, restarts_per_hour_max=0))])
        await rig.diary.entered(S.FAILED)
        assert rig.diary.states() == ["spawning", "loading", "warming", "failed"]
        assert rig.diary.reasons()[0].startswith("it failed its warm-up: ")
        assert "boom" not in rig.diary.reasons()[0]


async def test_an_engine_that_dies_in_its_warm_up_says_why(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        silent = {"kind": "slow_first", "seconds": 600}
        rig.supervisor.apply([rig.pool(rig.spec(silent, restarts_per_hour_max=0))])
        await rig.diary.entered(S.WARMING)
        os.kill(rig.worker.pid, signal.SIGABRT)
        await rig.diary.entered(S.FAILED)
        assert rig.diary.reasons()[0].startswith("the engine was killed by SIGABRT")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
async def test_an_incomplete_model_is_named_before_anything_is_started(
    tmp_path: Path, missing: str
) -> None:
    async with running(tmp_path) as rig:
        (rig.weights / missing).unlink()
        rig.supervisor.apply([rig.pool(rig.spec(restarts_per_hour_max=0))])
        await rig.diary.entered(S.FAILED)
        assert rig.diary.states() == ["spawning", "failed"]
        assert rig.worker.pid is None
        assert "the engine cannot be started: " in rig.worker.reason
        assert missing.rpartition(".")[2] in rig.worker.reason
        assert "copy the model folder again" in rig.worker.reason


async def test_a_missing_engine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as rig:
        environment = rig.supervisor._node.environment
        monkeypatch.setattr(environment, "command", lambda: ["/no/such/python"])
        rig.supervisor.apply([rig.pool(rig.spec(restarts_per_hour_max=0))])
        await rig.diary.entered(S.FAILED)
        assert "/no/such/python" in rig.worker.reason


async def test_a_changed_engine_rolls_through_the_pool(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        second = "chat-1-2"
        rig.supervisor.apply([rig.pool(rig.spec(), count=2)])
        await rig.diary.entered(S.READY)
        await rig.diary.entered(S.READY, worker_id=second)
        old_pids = [worker.pid or 0 for worker in rig.supervisor.workers.values()]
        begun = len(rig.diary.changes)
        rig.supervisor.apply([rig.pool(rig.spec(speed=100.0), count=2)])
        await rig.diary.entered(S.READY, times=2)
        await rig.diary.entered(S.READY, worker_id=second, times=2)
        told = [(change.worker, str(change.after)) for change in rig.diary.changes[begun:]]
        life = ["draining", "stopped", *A_LIFE]
        assert told == [(ID, state) for state in life] + [(second, state) for state in life]
        assert [session_members(pid) for pid in old_pids] == [[], []]
        rig.supervisor.apply([rig.pool(rig.spec(speed=100.0), count=1)])
        await rig.diary.entered(S.STOPPED, worker_id=second, times=2)
        assert rig.worker.state is S.READY


async def test_a_damaged_model_is_named_by_its_checksum(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        manifest = model_folder.write_manifest(rig.weights)
        spec = replace(rig.spec(), checksum=manifest.checksum)
        rig.supervisor.apply([rig.pool(spec)])
        await rig.diary.entered(S.READY)
        (rig.weights / "model.safetensors").write_text("{]")
        rig.supervisor.restart(ID)
        await rig.diary.entered(S.FAILED)
        assert "model.safetensors has other contents than recorded" in rig.worker.reason
