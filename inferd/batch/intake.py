"""A batch's input on its way from the store of files to the spool.

It is kept from the batch's creation until it is copied: its owner may delete the file at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from inferd.batch.job import InputFile, Job
from inferd.batch.lines import LineError
from inferd.batch.results import Files

PURPOSE: Final = "batch"


@contextmanager
def letting_go(kept: InputFile | None) -> Iterator[None]:
    """Around the write that makes a batch of it.

    The write happens even if the one who waits for it is cancelled, so only its failure lets go.
    """
    try:
        yield
    except Exception:
        if kept is not None:
            kept.let_go()
        raise


async def take_input(job: Job, files: Files) -> None:
    """Keep it, if that was not done when the batch was made."""
    if job.input is None:
        job.input = await files.keep(job.row.team, job.row.input_file_id)


def wrong_input(job: Job) -> LineError | None:
    """Why the file is no input at all; what is in it is told by its check."""
    if job.input is not None and job.input.purpose == PURPOSE:
        return None
    why = "does not exist" if job.input is None else f"has the purpose '{job.input.purpose}'"
    return LineError(
        "invalid_request",
        f"The input file '{job.row.input_file_id}' {why}. Upload one with purpose 'batch'.",
        "file_id",
    )


async def copy_input(job: Job) -> int:
    """Copy it to the spool and let it go; its size in bytes. Raises FileStoreError, OSError."""
    assert job.input is not None
    spool, size = job.spool, 0
    await asyncio.to_thread(spool.make)
    async for part in job.input.read():
        size = await asyncio.to_thread(spool.append, spool.input, size, part)
    job.let_input_go()
    return size
