"""`inferd workers`: the workers of the running server."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from inferd.cli.config import CONFIG, AsJson, ConfigPath

app = typer.Typer(help="List workers, restart one.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Add `workers` to the command line."""
    parent.add_typer(app, name="workers")


@app.command("list")
def list_workers(as_json: AsJson = False, config: ConfigPath = CONFIG) -> None:
    """Show every worker: state, requests, outstanding tokens, KV cache."""
    import asyncio

    from inferd.cli.server_place import find_server
    from inferd.cli.status import fetch

    status = asyncio.run(fetch(find_server(config)))
    workers = [
        worker | {"pool": pool["pool"]} for pool in status["pools"] for worker in pool["workers"]
    ]
    if as_json:
        typer.echo(json.dumps(workers))
        return
    from inferd.cli.status_view import worker_table
    from inferd.cli.tables import show

    show(worker_table(workers))


@app.command()
def restart(
    worker: Annotated[
        str, typer.Argument(metavar="WORKER", help="As `inferd workers list` shows it.")
    ],
    as_json: AsJson = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Let a worker finish what it has and start it again; end the wait of one that has failed."""
    import asyncio
    from urllib.parse import quote

    from inferd.cli.server_place import find_server

    place = find_server(config)

    async def ask() -> dict[str, Any]:
        async with place.admin() as admin:
            return await admin.call("POST", f"workers/{quote(worker, safe='')}/restart")

    answer = asyncio.run(ask())
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        typer.echo(f"{worker} starts again as soon as it has finished what it has.", err=True)
