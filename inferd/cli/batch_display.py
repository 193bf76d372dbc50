"""Progress of uploads and batches on standard error: a bar in a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TransferSpeedColumn,
)

from inferd.cli.batch_client import BatchClient
from inferd.cli.batch_view import error_line, progress
from inferd.clock import utc_now_us

Batch = dict[str, Any]


async def uploaded(client: BatchClient, file: Path) -> str:
    """Upload with a bar, if somebody looks; the file's id."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("uploading"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("", total=file.stat().st_size)  # noqa: ASYNC240 - once, before any call
        return await client.upload(file, lambda size: bar.advance(task, size))


async def followed(client: BatchClient, batch_id: str) -> Batch:
    """Show a batch's progress until it has ended; the batch as it ended."""
    live = sys.stderr.isatty()
    bar = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
        disable=not live,
    )
    said = ""
    batch: Batch = {}
    with bar:
        task = bar.add_task("", total=None)
        async for batch in client.follow(batch_id):
            counts = batch["request_counts"]
            done = counts["completed"] + counts["failed"]
            bar.update(
                task,
                total=counts["total"] or None,
                completed=done,
                description=progress(batch, utc_now_us() / 1e6),
            )
            if not live and batch["status"] != said:
                said = batch["status"]
                typer.echo(f"{said}: {done:,} of {counts['total']:,}", err=True)
    if batch["errors"] is not None:
        for error in batch["errors"]["data"]:
            typer.echo(error_line(error), err=True)
    return batch
