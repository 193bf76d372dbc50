"""Whatever is lost of the log or of a spool: every line ends once, and is billed once."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path

import pytest

from inferd.storage import batches
from tests.process.batch.rig import TEAM, Rig, lines, rig

pytestmark = pytest.mark.real_time(timeout_s=120)
CUTS = 8


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
