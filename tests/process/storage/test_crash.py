from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from inferd.storage.database import Database
from tests.fakes.running_database import running
from tests.process.storage import writing_program
from tests.process.storage.writing_program import AWAITED_FROM, ROWS_BETWEEN_REPORTS, insert

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def writing(path: Path, file_bytes_max: int | None = None) -> AsyncIterator[Process]:
    """The program, with a limit on the size of any file it writes."""

    def limit() -> None:
        if file_bytes_max is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))

    process = await asyncio.create_subprocess_exec(
        sys.executable,
        writing_program.__file__,
        str(path),
        stdout=PIPE,
        stderr=PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=limit,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def reports(process: Process) -> list[tuple[int, int]]:
    """What the program had said before it ended: newest posted row, newest awaited row."""
    output, _ = await process.communicate()
    lines = [line.split() for line in output.decode().splitlines(keepends=True) if line[-1] == "\n"]
    return [(int(words[1]), int(words[3])) for words in lines]


async def stored(path: Path) -> list[int]:
    async with Database.open(path) as db:
        assert [tuple(row) for row in await db.read("PRAGMA integrity_check")] == [("ok",)]
        rows = await db.read("SELECT created_us FROM keys ORDER BY created_us")
        return [row["created_us"] for row in rows]


@pytest.mark.parametrize("attempt", range(4))
async def test_a_kill_loses_at_most_the_last_flush_and_nothing_that_was_awaited(
    attempt: int, tmp_path: Path, rng: random.Random
) -> None:
    path = tmp_path / "inferd.db"
    async with writing(path) as process:
        assert process.stdout is not None
        await process.stdout.readline()
        await asyncio.sleep(0.02 + attempt * 0.05 + rng.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        said = await reports(process)
    rows = await stored(path)
    posted = [row for row in rows if row < AWAITED_FROM]
    awaited = [row for row in rows if row >= AWAITED_FROM]
    # No row is missing in between, and none that was reported.
    assert posted == list(range(len(posted)))
    assert awaited == list(range(AWAITED_FROM, AWAITED_FROM + len(awaited)))
    for last_posted, last_awaited in said:
        assert last_posted in posted
        assert last_awaited in awaited
    if said:
        assert len(posted) - 1 - said[-1][0] <= 2 * ROWS_BETWEEN_REPORTS
    async with running(Database.open(path)) as db:
        await db.write(partial(insert, 2 * AWAITED_FROM))


async def test_a_file_that_cannot_grow_ends_the_program_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "inferd.db"
    async with writing(path, file_bytes_max=400_000) as process:
        output, errors = await process.communicate()
    assert process.returncode not in {0, -signal.SIGXFSZ}
    assert output
    assert b"check free space, quota and file size limit" in errors
    rows = await stored(path)
    last_posted = int(output.split()[-3])
    assert [row for row in rows if row <= last_posted] == list(range(last_posted + 1))
