"""`inferd reload`: have the running server apply inferd.toml as it is now, or nothing of it."""

from __future__ import annotations

import json
from typing import Any

import typer

from inferd.cli.config import CONFIG, AsJson, ConfigPath
from inferd.cli.failure import FAILED


def register(parent: typer.Typer) -> None:
    """Add `reload` to the command line."""
    parent.command()(reload)


def reload(as_json: AsJson = False, config: ConfigPath = CONFIG) -> None:
    """Apply a changed inferd.toml to the running server; running requests go on.

    A file with a mistake, or with a change that needs a restart, is refused whole: every reason is
    told, nothing is changed, and the exit code is 1.
    """
    import asyncio

    from inferd.cli.admin_client import AdminError
    from inferd.cli.server_place import find_server

    place = find_server(config)

    async def ask() -> dict[str, Any]:
        async with place.admin() as admin:
            return await admin.call("POST", "reload")

    try:
        answer = asyncio.run(ask())
    except AdminError as error:
        if error.code != "invalid_config":
            raise
        if as_json:
            problems = error.message.splitlines()
            typer.echo(json.dumps({"object": "reload", "changes": [], "problems": problems}))
        else:
            typer.echo(f"{error.message}\nNothing was changed.", err=True)
        raise typer.Exit(FAILED) from error
    if as_json:
        typer.echo(json.dumps(answer))
    elif answer["changes"]:
        typer.echo("\n".join(change["text"] for change in answer["changes"]))
    else:
        typer.echo(f"{answer['config']} means the same as before: nothing to change.")
