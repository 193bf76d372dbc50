"""`inferd teams`: the teams of inferd.toml as the running server has them, with their keys."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from inferd.cli.config import CONFIG, AsJson, ConfigPath

app = typer.Typer(help="Show teams: limits, models, keys.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Add `teams` to the command line."""
    parent.add_typer(app, name="teams")


@app.command("list")
def list_teams(as_json: AsJson = False, config: ConfigPath = CONFIG) -> None:
    """Show every team. Teams are made and changed in inferd.toml."""
    from inferd.cli.admin_access import run

    teams = run(config, "inferd teams list", lambda admin: admin.teams())
    if as_json:
        typer.echo(json.dumps(teams))
        return
    from inferd.cli.tables import show, team_table

    if not teams:
        typer.echo(f"No teams yet. Add a [[teams]] section to {config}.", err=True)
        return
    show(team_table(teams))


@app.command("show")
def show_team(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    as_json: AsJson = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Show one team and its keys."""
    from inferd.cli.admin_access import run

    team = run(config, "inferd teams show", lambda admin: admin.team(name))
    if as_json:
        typer.echo(json.dumps(team))
        return
    from inferd.cli.tables import key_table, show, team_table

    show(team_table([team]))
    if team["keys"]:
        show(key_table(team["keys"]))
    else:
        typer.echo(f"No keys yet. Make one: inferd keys create --team {name}", err=True)
