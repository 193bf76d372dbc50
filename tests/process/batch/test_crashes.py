"""Whatever is lost of the log or of a spool: every line ends once, and is billed once."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from inferd.clock import utc_now_us
from inferd.config.batches import Batches
from inferd.errors import StorageError, WorkerUnreachable
from inferd.storage import batches
from inferd.storage.batches import BatchRow
from inferd.storage.database import Database
from tests.fakes.running_database import running
from tests.process.batch.rig import TEAM, Rig, lines, rig

pytestmark = pytest.mark.real_time(timeout_s=120)
CUTS = 8
_END_WINDOWS = "UPDATE batches SET expires_us = ?"


async def finished(one: Rig, batch_id: str, count: int) -> None:
    row = await one.ended(batch_id)
    assert (row.status, row.total, row.completed) == ("completed", count, count)
    output, _ = await one.results(row)
    assert {line["custom_id"] for line in output} == {f"id-{number}" for number in range(count)}
    assert len(await one.ledger()) == count


async def test_a_batch_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    async with rig(tmp_path, token_s=0.002) as one:
        created = await one.create(lines(60))
        await one.until(created.id, lambda row: row.completed >= 20)
        await one.stop()
        before = await one.row(created.id)
    async with rig(tmp_path) as one:
        await finished(one, created.id, 60)
        assert sum(one.calls.values()) == 60 - before.completed, "what was done is not done again"


async def test_a_batch_survives_a_stop_in_every_state(tmp_path: Path) -> None:
    """The runner is stopped after each small step, until there are no more steps."""
    async with rig(tmp_path) as one:
        created = await one.create(lines(30))
        await one.stop()
    states = set()
    for wait_s in [0.0, 0.05, 0.3, 0.35, 0.4, 0.45, 0.5]:
        async with rig(tmp_path, token_s=0.001) as one:
            await asyncio.sleep(wait_s)
            await one.stop()
            states.add((await one.row(created.id)).status)
    async with rig(tmp_path) as one:
        await finished(one, created.id, 30)
    assert states


async def test_power_is_cut(tmp_path: Path, rng: random.Random) -> None:
    """The log and the spools end anywhere, each on its own: what was synced may be lost, too."""
    first = tmp_path / "first"
    first.mkdir()
    async with rig(first, token_s=0.001) as one:
        created = await one.create(lines(80))
        await one.until(created.id, lambda row: row.completed >= 50)
        await one.stop()
        shutil.copytree(first, tmp_path / "image")
    for number in range(CUTS):
        folder = tmp_path / f"cut-{number}"
        shutil.copytree(tmp_path / "image", folder)
        victims = [folder / "inferd.db-wal", *(folder / "batches").glob("*/*.jsonl")]
        victims += (folder / "batches").glob("*/index")
        for victim in rng.sample(victims, rng.randint(1, len(victims))):
            os.truncate(victim, rng.randint(0, victim.stat().st_size))
        async with rig(folder) as one:
            if await batches.get(one.db, TEAM, created.id) is None:
                assert not list((folder / "batches").iterdir()), "cut before it was taken"
                continue
            await finished(one, created.id, 80)


async def test_the_log_is_lost_and_what_was_written_later_is_not(tmp_path: Path) -> None:
    """An old checkpoint, and in the spool other results where it knows of its own."""
    home = tmp_path / "home"
    home.mkdir()
    async with rig(home, token_s=0.001) as one:
        created = await one.create(lines(80))
        await one.until(created.id, lambda row: row.completed >= 40)
        await one.stop()
    shutil.copytree(home, tmp_path / "image")
    output = home / "batches" / created.id / "output.jsonl"
    results = output.read_bytes().splitlines(keepends=True)
    os.truncate(output, sum(map(len, results[:10])) + 2)
    async with rig(home, token_s=0.001, slots=2) as one:
        await one.until(created.id, lambda row: 25 <= row.completed < 40)
        await one.stop()
    for path in (tmp_path / "image").glob("inferd.db*"):
        shutil.copy(path, home)
    async with rig(home) as one:
        await finished(one, created.id, 80)


async def test_what_is_behind_the_checkpoint_is_cut_off(tmp_path: Path) -> None:
    async with rig(tmp_path, token_s=0.002) as one:
        created = await one.create(lines(40))
        await one.until(created.id, lambda row: row.completed >= 10)
        await one.stop()
    spool = tmp_path / "batches" / created.id
    with (spool / "output.jsonl").open("ab") as file:
        file.write(b'{"id": "half a li')
    (spool / "errors.jsonl").write_bytes(b'{"never": "counted"}\n')
    async with rig(tmp_path) as one:
        await finished(one, created.id, 40)


async def test_results_are_lost_and_the_window_ends(tmp_path: Path) -> None:
    """All was done, and none of it is left when there is no time to do it again."""
    async with rig(tmp_path) as one:
        created = await one.create(lines(20))
        one.files.broken_for_results = StorageError("The store is full.")
        await one.until(created.id, lambda row: row.status == "finalizing")
        await one.stop()
    os.truncate(tmp_path / "batches" / created.id / "output.jsonl", 100)
    ended_us = utc_now_us()
    async with running(Database.open(tmp_path / "inferd.db")) as db:
        await db.write(
            lambda cursor: cursor.execute("UPDATE batches SET expires_us = ?", (ended_us,))
        )
    async with rig(tmp_path) as one:
        row = await one.ended(created.id)
        errors = one.lines_of(row.error_file_id)
    assert (row.status, row.failed, row.output_file_id) == ("expired", 20, None)
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}


async def test_a_full_disk_holds_lines_up_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferd.batch.committer.RETRY_S", 0.05)
    pwrite = os.pwrite
    refused: list[int] = []

    def full_for_a_while(descriptor: int, data: memoryview, at: int) -> int:
        if at and len(refused) < 5:  # the input has gone through, and the first results
            refused.append(pwrite(descriptor, data[: len(data) // 2], at))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, at)

    async with rig(tmp_path, token_s=0.001) as one:
        created = await one.create(lines(60))
        await one.until(created.id, lambda row: row.completed)
        monkeypatch.setattr(os, "pwrite", full_for_a_while)
        await finished(one, created.id, 60)
        assert sum(one.calls.values()) == 60, "no line is asked for twice"
    assert len(refused) == 5


async def test_results_that_are_stored_need_no_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(_db: Database, _row: BatchRow) -> BatchRow:
        raise StorageError("The disk is full.")

    async with rig(tmp_path) as one:
        with monkeypatch.context() as patched:
            patched.setattr(batches, "finish", full)
            created = await one.create(lines(20))
            await one.until(created.id, lambda row: row.output_file_id)
            await one.stop()
    shutil.rmtree(tmp_path / "batches")
    async with rig(tmp_path) as one:
        await finished(one, created.id, 20)
        assert not one.calls


async def test_a_stop_is_no_attempt(tmp_path: Path) -> None:
    """Workers go right after the lines in flight are cut: no line may end for that."""
    limits = Batches(attempts_max=1)
    async with rig(tmp_path, token_s=0.02, limits=limits) as one:
        created = await one.create(lines(40))
        await one.until(created.id, lambda row: row.completed >= 8)
        one.runner.stop()
        await one.runner.cut()
        for worker in one.path.workers.values():
            worker.client.fail_all(WorkerUnreachable("It is gone."))
        await asyncio.sleep(0.1)
        await one.stop()
        before = await one.row(created.id)
        assert (before.status, before.failed) == ("in_progress", 0)
    async with rig(tmp_path, limits=limits) as one:
        await finished(one, created.id, 40)
        assert sum(one.calls.values()) == 40 - before.completed
