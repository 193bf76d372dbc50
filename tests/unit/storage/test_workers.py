"""Records of engines are read back as they were written, also the ones without a process yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inferd.storage import quarantine, workers
from inferd.storage.workers import EngineRecord
from tests.fakes.running_database import running
from tests.unit.storage.rows import Open

ABOUT_TO_START = EngineRecord(
    mark="5f",
    worker_id="chat-1-1",
    boot_id="boot",
    port=30_000,
    api_key="secret",
    spec_hash="spec",
    program_hash="program",
    devices=("0", "GPU-1"),
    started_us=1,
)
RUNNING = replace(ABOUT_TO_START, pid=7, start_ticks=70)


@pytest.mark.real_time
async def test_a_record_grows_with_its_engine_and_goes_with_it(open_database: Open) -> None:
    async with running(open_database()) as db:
        await workers.put(db, ABOUT_TO_START)
        assert await workers.load(db) == [ABOUT_TO_START]
        workers.post(db, RUNNING)
        workers.post(db, replace(RUNNING, was_ready=True))
        await db.flush()
        assert await workers.load(db) == [replace(RUNNING, was_ready=True)]
        other = replace(ABOUT_TO_START, mark="60", started_us=0)
        await workers.put(db, other)
        workers.forget(db, RUNNING.mark)
        await db.flush()
        assert await workers.load(db) == [other]


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(RUNNING)


@pytest.mark.real_time
async def test_a_quarantine_is_there_until_it_is_lifted(open_database: Open) -> None:
    async with running(open_database()) as db:
        quarantine.note(db, "GPU-1", "Xid 79")
        quarantine.note(db, "GPU-2", "heat")
        quarantine.note(db, "GPU-2", None)
        await db.flush()
        assert await quarantine.load(db) == {"GPU-1": "Xid 79"}
