"""The end of a batch's files: lines that never ran, lost results, and the way to the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from inferd.batch.committer import Committer
from inferd.batch.job import InputFile, Job, Line, LineResult
from inferd.batch.jobs import line_id
from inferd.batch.line import unserved
from inferd.storage.batches import forget_lines, lines_done, name_file
from inferd.storage.database import Cursor, Database

CHUNK: Final = 256
KEPT_S: Final = 2_592_000
"""Thirty days, if the batch does not say how long."""
PURPOSE: Final = "batch_output"
WHY: Final = {
    "expired": (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    "cancelled": ("batch_cancelled", "This request was not executed: the batch was cancelled."),
}

_log: Final = logging.getLogger(__name__)


class StoredFile(Protocol):
    """A row of the store of files."""

    @property
    def id(self) -> str: ...


class Files(Protocol):
    """The store of files, as far as batches go."""

    async def keep(self, team: str, file_id: str) -> InputFile | None:
        """The team's file, its bytes there until it is let go; None for another's."""

    async def add_from_path(
        self,
        team: str,
        path: Path,
        filename: str,
        purpose: str,
        expires_us: int | None,
        also: Callable[[Cursor, Any], object] | None = None,
    ) -> StoredFile:
        """Store a local file for the team; `also` writes in the transaction of its row."""


async def recover(db: Database, job: Job) -> None:
    """Cut the spools back to the checkpoint; lines whose results are lost are not done.

    None is lost unless a disk has lost what it had synced.
    """
    spool = job.spool
    done = await lines_done(db, job.id)
    if lost := await asyncio.to_thread(_lost, job, done):
        _log.warning("%s: the results of %d lines are lost, they run again", job.id, len(lost))
        job.counted(await forget_lines(db, job.id, lost))
    row = job.row

    def cut() -> None:
        spool.cut(spool.output, row.output_bytes)
        spool.cut(spool.errors, row.error_bytes)

    await asyncio.to_thread(cut)
    gone = set(lost)
    entries = await asyncio.to_thread(spool.entries)
    job.load(entries, (line for line, _, _ in done if line not in gone))


async def close_rest(job: Job, committer: Committer) -> None:
    """Every line that never ran goes to the error file, with the reason."""
    assert job.row.ending is not None
    code, message = WHY[job.row.ending]
    while lines := list(islice(job.take_rest(), CHUNK)):
        try:
            data = await asyncio.to_thread(_unserved, job, lines, code, message)
        except BaseException:
            for line in lines:
                job.give_back(line)
            raise
        committer.hand_over(
            job,
            [
                LineResult(line, one, failed=True, usage_row=None)
                for line, one in zip(lines, data, strict=True)
            ],
        )
        await job.idle.wait()


async def store_results(job: Job, files: Files, now_us: int) -> None:
    """Output and error file, but those that would be empty or are stored already."""
    row, spool = job.row, job.spool
    expires_us = now_us + (row.output_expires_s or KEPT_S) * 1_000_000
    for kind, path, size in (
        ("output", spool.output, row.output_bytes),
        ("error", spool.errors, row.error_bytes),
    ):
        if not size or getattr(job.row, f"{kind}_file_id") is not None:
            continue
        # The batch knows of the file in the same transaction: a crash leaves no second one.
        stored = await files.add_from_path(
            row.team,
            path,
            f"{row.id}_{kind}.jsonl",
            PURPOSE,
            expires_us,
            partial(_name_file, row.id, kind),
        )
        job.row = replace(job.row, **{f"{kind}_file_id": stored.id})  # type: ignore[arg-type]


def _lost(job: Job, done: list[tuple[int, bool, int]]) -> list[int]:
    """Lines whose results are not where the checkpoint says, nor in the store.

    From the first one on, all of a spool are.
    """
    row, spool, lost = job.row, job.spool, list[int]()
    for path, of_errors, stored in (
        (spool.output, False, row.output_file_id),
        (spool.errors, True, row.error_file_id),
    ):
        if stored is not None:
            continue
        results = sorted((end, line) for line, failed, end in done if failed == of_errors)
        heads = ((end, b'{"id":"%b",' % line_id(job.id, line).encode()) for end, line in results)
        kept = spool.kept(path, heads)
        lost += [line for _, line in results[kept:]]
    return lost


def _name_file(batch_id: str, kind: str, cursor: Cursor, file: StoredFile) -> None:
    name_file(cursor, batch_id, kind, file.id)


def _unserved(job: Job, lines: list[Line], code: str, message: str) -> list[bytes]:
    found = []
    for line in lines:
        custom_id = orjson.loads(job.spool.read_line(line.offset, line.length))["custom_id"]
        found.append(unserved(job.id, line, custom_id, code, message))
    return found
