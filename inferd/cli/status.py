"""`inferd status`: pools, workers, queues and teams of the running server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferd.cli.config import CONFIG, AsJson, ConfigPath
from inferd.errors import InferdError

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferd.cli.server_place import ServerPlace

INTERVAL_S_MIN = 0.1

Answer = dict[str, Any]


def register(parent: typer.Typer) -> None:
    """Add `status` to the command line."""
    parent.command()(status)


def status(
    as_json: AsJson = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again and again; Ctrl-C leaves.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=INTERVAL_S_MIN, help="Seconds between two looks of --watch.")
    ] = 1.0,
    config: ConfigPath = CONFIG,
) -> None:
    """Show pools, workers, queues and teams of the running server."""
    import asyncio

    from inferd.cli.server_place import find_server

    place = find_server(config)
    if not watch:
        answer = asyncio.run(fetch(place))
        _print_json(answer) if as_json else _print_tables(answer)
    elif as_json:
        asyncio.run(_watch(place, interval, _print_json))
    else:
        _watch_tables(place, interval)


async def fetch(place: ServerPlace) -> Answer:
    """The status as the running server gives it. Raises InferdError if there is none."""
    async with place.admin() as admin:
        return await admin.call("GET", "status")


async def _watch(place: ServerPlace, interval_s: float, show: Callable[[Answer], None]) -> None:
    """Look and show until Ctrl-C. A server that is away may come back."""
    import asyncio

    while True:
        try:
            answer = await fetch(place)
        except InferdError as error:
            answer = {"object": "error", "message": error.message}
        show(answer)
        await asyncio.sleep(interval_s)


def _watch_tables(place: ServerPlace, interval_s: float) -> None:
    import asyncio

    from rich.live import Live
    from rich.text import Text

    from inferd.cli.status_view import status_view
    from inferd.cli.tables import plain_console

    console = plain_console()
    if not console.is_terminal or console.is_dumb_terminal:
        asyncio.run(_watch(place, interval_s, _print_tables))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show(answer: Answer) -> None:
            seen = answer["object"] == "status"
            live.update(status_view(answer) if seen else Text(answer["message"]), refresh=True)

        asyncio.run(_watch(place, interval_s, show))


def _print_json(answer: Answer) -> None:
    typer.echo(json.dumps(answer))


def _print_tables(answer: Answer) -> None:
    from inferd.cli.status_view import status_view
    from inferd.cli.tables import show

    if answer["object"] == "status":
        show(status_view(answer))
    else:
        typer.echo(answer["message"])
