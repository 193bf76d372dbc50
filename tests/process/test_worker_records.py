"""Which recorded engines fit, may live, or are ended: with real processes."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from inferd.storage.workers import EngineRecord
from inferd.workers.process import (
    EngineProcess,
    Program,
    adopt,
    boot_id,
    end_marked,
    session_members,
    spawn,
)
from inferd.workers.process_table import UNKNOWN_STATUS, is_running, marked
from inferd.workers.records import Records, end_engine, process_of, with_process
from tests.process.test_worker_process import said

pytestmark = pytest.mark.real_time(timeout_s=30)

MARK = "a-mark-of-this-test"
# A leader whose child has begun a session of its own after two forks.
RUNAWAY = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("READY", flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
if "EXIT" in sys.argv:
    sys.exit(0)
time.sleep(600)
"""
RECORD = EngineRecord(
    mark=MARK,
    worker_id="chat-1-1",
    boot_id=boot_id(),
    port=1,
    api_key="key",
    spec_hash="hash",
    program_hash="program",
    devices=(),
    started_us=0,
)


def start(folder: Path, *arguments: str) -> EngineProcess:
    with (folder / "output").open("ab") as output:
        return spawn(
            Program((sys.executable, "-c", RUNAWAY, *arguments), dict(os.environ), folder),
            output=output.fileno(),
            worker_id="chat-1-1",
            port=1,
            spec_hash="hash",
            stop_grace_s=0.3,
            mark=MARK,
        )


def reap(engine: EngineProcess) -> None:
    """An engine that was handed over is still a child of this test."""
    assert engine._leader is not None
    engine._leader.wait()


async def test_who_left_the_session_is_ended_with_it(tmp_path: Path) -> None:
    async with start(tmp_path) as engine:
        await said(tmp_path, "READY")
        runaways = set(marked(MARK)) - {engine.record.pid}
        assert len(runaways) == 1
        assert session_members(engine.record.pid) == [engine.record.pid]
    assert marked(MARK) == []


async def test_an_engine_is_handed_over_and_followed(tmp_path: Path) -> None:
    async with start(tmp_path) as engine:
        await said(tmp_path, "READY")
        engine.hand_over()
    assert is_running(engine.record.pid)
    told: list[int | None] = []
    async with adopt(engine.record, stop_grace_s=0.3) as adopted:
        adopted.on_exit = lambda: told.append(adopted.exit_status)
        os.kill(engine.record.pid, 9)
        assert await adopted.wait() == UNKNOWN_STATUS
    assert told == [UNKNOWN_STATUS]
    assert marked(MARK) == []
    reap(engine)


async def test_only_the_recorded_process_is_adopted_or_ended(tmp_path: Path) -> None:
    async with start(tmp_path) as engine:
        await said(tmp_path, "READY")
        stranger = replace(engine.record, start_ticks=engine.record.start_ticks - 1)
        with pytest.raises(ProcessLookupError):
            adopt(stranger, stop_grace_s=0.3)
        other = replace(with_process(RECORD, stranger), mark="of another")
        assert not await end_engine(other, stop_grace_s=0.3, files="")
        assert is_running(engine.record.pid)
        here = with_process(RECORD, engine.record)
        records = Records(
            found=[
                here,
                replace(other, mark="1"),
                replace(here, mark="2", boot_id="of another boot"),
            ]
        )
        assert list(records) == [here]
        assert records.fitting("chat-1-1", "hash", "program") == here
        assert records.fitting("chat-1-2", "hash", "program") is None
        assert records.fitting("chat-1-1", "other", "program") is None
        assert records.fitting("chat-1-1", "hash", "of a newer inferd") is None
        engine.hand_over()
        await records.end(here, stop_grace_s=0.3, files="")
        assert list(records) == []
    assert marked(MARK) == []
    reap(engine)


async def test_what_was_started_but_never_noted_is_found_by_its_mark(tmp_path: Path) -> None:
    async with start(tmp_path, "EXIT") as engine:
        await said(tmp_path, "READY")
        await engine.wait()
        assert process_of(RECORD) is None
        records = Records(found=[RECORD])
        assert list(records) == [RECORD]
        assert records.fitting("chat-1-1", "hash", "program") is None
        await records.end(RECORD, stop_grace_s=0.3, files="")
    assert await end_marked(MARK, "chat-1-1") == 0
