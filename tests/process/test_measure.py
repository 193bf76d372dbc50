"""Measuring an engine. Goal: figures of what it does, and nothing of it left, however it ends."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from inferd.capacity import measure as module
from inferd.capacity.measure import measure
from inferd.capacity.step_cost import CHUNKS, Measured, pace
from inferd.config.version import EngineOptions, Workers
from inferd.errors import ProvisionError
from inferd.workers.process import EngineProcess, session_members, spawn
from inferd.workers.spec import WorkerSpec
from tests.fakes.engines import FAKE_COMMAND

pytestmark = pytest.mark.real_time(timeout_s=90)

SPEED = 10.0


class Stub:
    """An engine environment whose program is given."""

    def __init__(self, *command: str) -> None:
        self._command = command

    def command(self) -> list[str]:
        return list(self._command)

    def env(self, extra: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, **extra}


def fake(*flags: str) -> Stub:
    return Stub(*FAKE_COMMAND, "--speed", str(SPEED), *flags)


@pytest.fixture
def spec(tmp_path: Path) -> WorkerSpec:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return WorkerSpec(
        model="demo",
        weights=folder,
        checksum=None,
        context_tokens_max=4_096,
        engine=EngineOptions(device="cpu", running_max=16, kv_tokens_max=16_384),
        workers=Workers(),
    )


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[EngineProcess]:
    """The engines that were started."""
    processes: list[EngineProcess] = []

    def recorded(*arguments: Any, **named: Any) -> EngineProcess:
        processes.append(spawn(*arguments, **named))
        return processes[-1]

    monkeypatch.setattr(module, "spawn", recorded)
    return processes


def nothing_left(started: list[EngineProcess]) -> bool:
    return bool(started) and not any(session_members(engine.record.pid) for engine in started)


async def figures(spec: WorkerSpec, engine: Stub, told: list[str]) -> Measured:
    return await measure(spec, engine, random.Random(1), told.append)


async def test_an_engine_is_measured_and_gone(
    spec: WorkerSpec, started: list[EngineProcess]
) -> None:
    told: list[str] = []
    found = await figures(spec, fake(), told)
    assert nothing_left(started)
    # The fake's own costs, which the machine's load can only add to: 34 ms a step, 3 ms a decode,
    # 1.1 ms a prefilled token.
    assert found.decode_1_s >= 0.037 / SPEED * 0.5
    assert found.decode_8_s >= 0.058 / SPEED * 0.5
    assert 0 < found.prefill_tokens_per_s <= 1_000 / 1.1 * SPEED * 1.5
    assert found.prefill.seconds(512, 512) >= (34 + 512 * 1.1) / 1_000 / SPEED * 0.5
    made = pace(found, spec.context_tokens_max, "2026-11-30")
    assert made.chunk_tokens in CHUNKS
    assert made.ttft_ms > made.tpot_ms
    phases = [text.partition(":")[0] for text in told]
    assert phases == sorted(phases, reverse=True)
    assert told[0].startswith("starting the engine: ")
    assert "measuring: prefill, 1,000 tokens" in told


async def test_a_long_prompt_is_left_out_where_short_ones_were_slow(
    spec: WorkerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONG_AFTER_S_MAX", 0.0)
    told: list[str] = []
    await figures(spec, fake(), told)
    assert told[-1] == "measuring: prefill, 64 tokens after 1,000"


async def refused(spec: WorkerSpec, engine: Stub) -> str:
    with pytest.raises(ProvisionError) as failed:
        await figures(spec, engine, [])
    return failed.value.message


async def test_an_engine_that_exits_at_once_is_told_with_its_last_words(
    spec: WorkerSpec, started: list[EngineProcess]
) -> None:
    engine = Stub(sys.executable, "-c", "print('no luck today'); raise SystemExit(3)")
    told = await refused(spec, engine)
    assert "the engine exited with code 3; its last words: no luck today" in told
    assert told.endswith("See `inferd engine doctor`")
    assert nothing_left(started)


async def test_a_program_that_is_not_there(spec: WorkerSpec, tmp_path: Path) -> None:
    told = await refused(spec, Stub(str(tmp_path / "no-python")))
    assert "the engine cannot be started" in told


async def test_an_incomplete_model_is_not_started(
    spec: WorkerSpec, started: list[EngineProcess]
) -> None:
    (spec.weights / "model.safetensors").unlink()
    assert "the weights are missing (*.safetensors)" in await refused(spec, fake())
    assert started == []


async def test_an_engine_that_is_never_ready_is_given_up(
    spec: WorkerSpec, started: list[EngineProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_S_MAX", 0.5)
    told = await refused(spec, fake("--load-seconds", "1000"))
    assert "the engine was not ready after" in told
    assert nothing_left(started)


async def test_an_engine_that_dies_while_it_is_measured(
    spec: WorkerSpec, started: list[EngineProcess]
) -> None:
    def report(text: str) -> None:
        if text == "measuring: prefill, 256 tokens":
            os.kill(started[0].record.pid, signal.SIGKILL)

    with pytest.raises(ProvisionError, match="the engine was killed by SIGKILL"):
        await measure(spec, fake(), random.Random(1), report)
    assert nothing_left(started)


async def test_an_engine_that_refuses_while_it_is_measured(
    spec: WorkerSpec, started: list[EngineProcess]
) -> None:
    fault = {"kind": "error", "status": 500, "message": "it hurts", "times": 1}
    told = await refused(spec, fake("--fault", json.dumps(fault)))
    assert told.endswith(". See `inferd engine doctor`")
    assert nothing_left(started)


async def test_an_engine_that_fails_one_of_eight_streams(
    spec: WorkerSpec, started: list[EngineProcess]
) -> None:
    fault = {"kind": "error", "status": 500, "match": '"max_tokens":20', "message": "x"}
    await refused(spec, fake("--fault", json.dumps(fault)))
    assert nothing_left(started)


async def test_nothing_is_left_of_a_measure_that_was_interrupted(
    spec: WorkerSpec, started: list[EngineProcess]
) -> None:
    reached = asyncio.Event()

    def report(text: str) -> None:
        if "prefill" in text:
            reached.set()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(measure(spec, fake(), random.Random(1), report))
        await reached.wait()
        task.cancel()
    assert task.cancelled()
    assert nothing_left(started)
