"""`inferd recordings`: how much text of which teams is kept, and its end."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from inferd.cli.config import CONFIG, AsJson, ConfigPath

app = typer.Typer(help="Show and delete the text that teams keep.", invoke_without_command=True)


def register(parent: typer.Typer) -> None:
    """Add `recordings` to the command line."""
    parent.add_typer(app, name="recordings")


@app.callback()
def recordings(
    context: typer.Context, as_json: AsJson = False, config: ConfigPath = CONFIG
) -> None:
    """Show how much is kept of each team with a section [teams.recording].

    `inferd why REQUEST_ID --text` shows the text of one request.
    """
    if context.invoked_subcommand is not None:
        return
    from inferd.cli.server_place import ask_server

    found = ask_server(config, "GET", "recordings")["data"]
    if as_json:
        typer.echo(json.dumps(found))
    elif not found:
        typer.echo("No text is kept of any team.", err=True)
    else:
        from inferd.cli.bill_view import recordings_table
        from inferd.cli.tables import show

        show(recordings_table(found))


@app.command()
def delete(
    team: Annotated[str, typer.Argument(metavar="TEAM", help="As `inferd recordings` shows it.")],
    as_json: AsJson = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Delete all text of a team. What it asks from now on is kept as before."""
    from urllib.parse import quote

    from inferd.cli.server_place import ask_server

    answer = ask_server(config, "DELETE", f"recordings/{quote(team, safe='')}")
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        typer.echo(f"{answer['bytes']:,} bytes of {team} are deleted.", err=True)
