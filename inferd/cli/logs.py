"""`inferd logs`: what a worker's engine has written, from the running server or from its file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from inferd.cli.config import CONFIG, ConfigPath

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from inferd.cli.server_place import ServerPlace

LINES_MAX = 100_000


def register(parent: typer.Typer) -> None:
    """Add `logs` to the command line."""
    parent.command()(logs)


def logs(
    worker: Annotated[
        str, typer.Argument(metavar="WORKER", help="As `inferd workers list` shows it.")
    ],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes; Ctrl-C leaves.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=LINES_MAX, help="Show so many, the last.")
    ] = 100,
    config: ConfigPath = CONFIG,
) -> None:
    """Show the last output of a worker's engine.

    Without a running server it is read from the worker's file in the state folder.
    """
    import asyncio

    from inferd.cli.server_place import find_server

    place = find_server(config)
    asyncio.run(_show(place, worker, lines=lines, follow=follow))


async def _show(place: ServerPlace, worker: str, *, lines: int, follow: bool) -> None:
    from contextlib import aclosing

    running = place.holder() is not None
    read = _from_server if running else _from_file
    async with aclosing(read(place, worker, lines=lines, follow=follow)) as pieces:
        async for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()


async def _from_server(
    place: ServerPlace, worker: str, *, lines: int, follow: bool
) -> AsyncGenerator[str]:
    from contextlib import aclosing

    async with (
        place.admin() as admin,
        aclosing(admin.output(worker, lines=lines, follow=follow)) as pieces,
    ):
        async for piece in pieces:
            yield piece


async def _from_file(
    place: ServerPlace, worker: str, *, lines: int, follow: bool
) -> AsyncGenerator[str]:
    from inferd.errors import NotFound
    from inferd.workers import output_log

    folder = place.state_dir / "workers"
    known = sorted(path.parent.name for path in folder.glob("*/output.log"))
    if worker not in known:
        raise NotFound(
            f"No server runs, and {folder} has no output of a worker '{worker}'; it has that of:"
            f" {', '.join(known) or 'none'}."
        )
    typer.echo("No server runs; this is from its last one.", err=True)
    async for line in output_log.follow(folder / worker / "output.log", lines=lines, follow=follow):
        yield f"{line}\n"
