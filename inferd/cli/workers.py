"""`inferd workers`: the workers of the running server, and engines that a dead one has left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from inferd.cli import logs
from inferd.cli.config import CONFIG, AsJson, ConfigPath
from inferd.cli.durations import parse_duration

app = typer.Typer(help="List, show, drain, restart workers.", no_args_is_help=True)

WorkerId = Annotated[
    str, typer.Argument(metavar="WORKER", help="As `inferd workers list` shows it.")
]

Answer = dict[str, Any]


def register(parent: typer.Typer) -> None:
    """Add `workers` to the command line."""
    parent.add_typer(app, name="workers")


app.command("logs")(logs.logs)


@app.command("list")
def list_workers(as_json: AsJson = False, config: ConfigPath = CONFIG) -> None:
    """Show every worker: state, requests, outstanding tokens, KV cache."""
    workers = _ask(config, "GET", "workers")["data"]
    if as_json:
        typer.echo(json.dumps(workers))
        return
    from inferd.cli.status_view import worker_table
    from inferd.cli.tables import show as print_table

    print_table(worker_table(workers))


@app.command()
def show(worker: WorkerId, as_json: AsJson = False, config: ConfigPath = CONFIG) -> None:
    """Show all that is known of a worker: its process, GPUs, load, last failure."""
    answer = _ask(config, "GET", f"workers/{_quoted(worker)}")
    if as_json:
        typer.echo(json.dumps(answer))
        return
    from inferd.cli.tables import show as print_table
    from inferd.cli.worker_view import worker_details

    print_table(worker_details(answer))


@app.command()
def drain(
    worker: WorkerId,
    within: Annotated[
        str | None,
        typer.Option(help="For what it has: 30s, 5m; else `workers.drain_s` of its version."),
    ] = None,
    as_json: AsJson = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Send a worker nothing more, let it finish what it has, and stop it.

    What is not finished by then ends with an error that tells the usage so far. Nothing is started
    in its place until `inferd workers restart`, or until the server starts again.
    """
    try:
        body: Answer = {} if within is None else {"drain_s": parse_duration(within)}
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--within") from error
    answer = _ask(config, "POST", f"workers/{_quoted(worker)}/drain", body)
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        typer.echo(
            f"{worker} gets no more requests and stops when it has finished what it has;"
            f" inferd workers restart {worker} starts it again.",
            err=True,
        )


@app.command()
def restart(worker: WorkerId, as_json: AsJson = False, config: ConfigPath = CONFIG) -> None:
    """Let a worker finish what it has and start it again; end the wait of one that has failed."""
    answer = _ask(config, "POST", f"workers/{_quoted(worker)}/restart")
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        typer.echo(f"{worker} starts again as soon as it has finished what it has.", err=True)


@app.command()
def reap(as_json: AsJson = False, config: ConfigPath = CONFIG) -> None:
    """End the engines that a server has left running, while none runs.

    The next server would take them over: this is for when there is to be none.
    """
    import asyncio

    from inferd.cli.server_place import find_server

    ended = asyncio.run(_reap(find_server(config).state_dir))
    if as_json:
        typer.echo(json.dumps(ended))
    elif not ended:
        typer.echo("No engine was left running.", err=True)
    for one in ended if not as_json else []:
        typer.echo(f"{one['worker']} is ended (process {one['pid']}).")


async def _reap(state_dir: Path) -> list[Answer]:
    import asyncio

    from inferd.cli.admin_access import DATABASE_FILE
    from inferd.storage import workers as storage
    from inferd.storage.database import Database
    from inferd.storage.lock import hold
    from inferd.workers import engine
    from inferd.workers.records import end_engine

    path = state_dir / DATABASE_FILE
    if not path.exists():
        return []
    ended: list[Answer] = []
    async with hold(state_dir, "inferd workers reap"), Database.open(path) as db:
        records = await storage.load(db)
        async with asyncio.TaskGroup() as group:
            ends = {
                record.mark: group.create_task(
                    end_engine(record, stop_grace_s=engine.STOP_GRACE_S, files=engine.LOAD_REPORTS)
                )
                for record in records
            }
        for record in records:
            storage.forget(db, record.mark)
            if ends[record.mark].result():
                ended.append({"worker": record.worker_id, "pid": record.pid})
    return ended


def _ask(config: Path, method: str, path: str, body: Answer | None = None) -> Answer:
    import asyncio

    from inferd.cli.server_place import find_server

    place = find_server(config)

    async def ask() -> Answer:
        async with place.admin() as admin:
            return await admin.call(method, path, body)

    return asyncio.run(ask())


def _quoted(worker: str) -> str:
    from urllib.parse import quote

    return quote(worker, safe="")
