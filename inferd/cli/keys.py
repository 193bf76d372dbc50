"""`inferd keys`: make, show, rotate and revoke API keys.

A secret goes to standard output alone, so that `KEY=$(inferd keys create --team t)` works; what is
said about it goes to standard error. What is heavy is imported where it is used.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferd.cli.config import CONFIG, AsJson, ConfigPath
from inferd.cli.durations import parse_duration

if TYPE_CHECKING:
    from inferd.cli.admin_access import Admin

Key = dict[str, Any]

BURST_S = 60
"""Seconds of refill that a bucket holds if its size is not given."""

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on standard error.")]
TeamName = Annotated[str, typer.Option("--team", help="A team of inferd.toml.")]
KeyName = Annotated[str, typer.Option("--name", help="What it is for, to recognise it.")]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="As `inferd keys list` shows it.")]

app = typer.Typer(help="Make, list, rotate and revoke the API keys of teams.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Add `keys` to the command line."""
    parent.add_typer(app, name="keys")


@app.command()
def create(  # noqa: PLR0917 - options, given by name
    team: TeamName,
    name: KeyName = "",
    expires: Annotated[
        str | None, typer.Option(help="Refuse it after this long: 12h, 30d, 2w; else never.")
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Only these models, as a,b; else all of the team.")
    ] = None,
    tokens_per_s: Annotated[
        int | None, typer.Option(min=1, help="Refill of its own token bucket.")
    ] = None,
    burst_tokens: Annotated[
        int | None, typer.Option(min=1, help="Size of that bucket; default: a minute of refill.")
    ] = None,
    requests_per_s: Annotated[
        float | None, typer.Option(min=1e-6, help="Refill of its own request bucket.")
    ] = None,
    burst_requests: Annotated[
        int | None, typer.Option(min=1, help="Size of that bucket; default: a minute of refill.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Make a key. Its secret is shown this once: inferd keeps only a hash of it.

    Limits of its own hold beside those of its team: a request must fit all of them.
    """
    from inferd.cli.admin_access import run

    expires_s = _seconds(expires, "--expires")
    names = None if models is None else [name.strip() for name in models.split(",")]
    limits = {
        **_pair("tokens_per_s", tokens_per_s, "burst_tokens", burst_tokens),
        **_pair("requests_per_s", requests_per_s, "burst_requests", burst_requests),
    }
    key = run(
        config,
        "inferd keys create",
        lambda admin: admin.create(team, name, expires_s, names, limits or None),
    )
    _show_secret(key, f"Key {key['id']} for team {team} is made.", as_json=as_json, quiet=quiet)


@app.command("list")
def list_keys(
    team: Annotated[str | None, typer.Option("--team", help="Only of this team.")] = None,
    as_json: AsJson = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Show every key ever made, without its secret."""
    from inferd.cli.admin_access import run

    keys = run(config, "inferd keys list", lambda admin: admin.keys(team))
    if as_json:
        typer.echo(json.dumps(keys))
        return
    from inferd.cli.tables import key_table, show

    if not keys:
        typer.echo("No keys yet. Make one: inferd keys create --team TEAM", err=True)
        return
    show(key_table(keys))


@app.command()
def rotate(
    key_id: KeyId,
    grace: Annotated[
        str, typer.Option(help="The old secret works this much longer: 10m, 1d.")
    ] = "0s",
    as_json: AsJson = False,
    quiet: Quiet = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Give a key a new secret; its id, team and limits stay.

    The old secret is refused at once, unless --grace lets it work on for a while.
    """
    from inferd.cli.admin_access import run

    grace_s = _seconds(grace, "--grace") or 0.0
    key = run(config, "inferd keys rotate", lambda admin: admin.rotate(key_id, grace_s))
    said = f"The old one works for {grace} more." if grace_s else "The old one is refused now."
    _show_secret(key, f"Key {key_id} has a new secret. {said}", as_json=as_json, quiet=quiet)


@app.command()
def revoke(
    key_id: KeyId,
    as_json: AsJson = False,
    quiet: Quiet = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Refuse a key from now on, for good."""
    from inferd.cli.admin_access import run

    key = run(config, "inferd keys revoke", lambda admin: admin.revoke(key_id))
    if as_json:
        typer.echo(json.dumps(key))
    elif not quiet:
        typer.echo(f"Key {key_id} of team {key['team']} is refused from now on.", err=True)


@app.command()
def ensure(
    team: TeamName,
    file: Annotated[Path, typer.Option("--file", help="Holds the secret, for its owner alone.")],
    name: KeyName = "",
    as_json: AsJson = False,
    quiet: Quiet = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Make sure that a file holds a working key of a team: make one only if it does not."""
    from inferd.cli.admin_access import run
    from inferd.cli.key_file import KeyFile

    async def work(admin: Admin) -> tuple[Key, bool]:
        return await KeyFile(file).ensure(admin, team, name)

    key, created = run(config, "inferd keys ensure", work)
    if as_json:
        typer.echo(json.dumps(key | {"file": str(file), "created": created}))
    elif not quiet:
        said = "Made" if created else "There is already"
        typer.echo(f"{said} key {key['id']} of team {team} in {file}.", err=True)


def _show_secret(key: Key, said: str, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        typer.echo(json.dumps(key))
        return
    if not quiet:
        typer.echo(f"{said} This is shown once, so keep it now:", err=True)
    typer.echo(key["secret"])


def _pair(rate: str, per_s: float | None, burst: str, size: int | None) -> dict[str, float]:
    """A limit as the admin API takes it."""
    if per_s is None:
        if size is not None:
            option = "--" + rate.replace("_", "-")
            raise typer.BadParameter(
                f"needs {option} beside it.", param_hint="--" + burst.replace("_", "-")
            )
        return {}
    return {rate: per_s, burst: size or max(1, math.ceil(per_s * BURST_S))}


def _seconds(text: str | None, option: str) -> float | None:
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
