"""`inferd usage`: who used what and what it costs; `inferd usage export`: the ledger's rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from inferd.cli.config import CONFIG, AsJson, ConfigPath

FORMATS = ("csv", "jsonl", "parquet")

By = Annotated[
    str, typer.Option(help="Sum by these: team, key, model, version, priority, outcome, hour, day.")
]
Since = Annotated[
    str, typer.Option(help="From when: 2026-12-01, 2026-12-01T10, 7d (ago), or month (this one).")
]
Until = Annotated[str | None, typer.Option(help="Until when, not included; else until now.")]
Team = Annotated[str | None, typer.Option("--team", help="Only of this team.")]
ModelName = Annotated[str | None, typer.Option("--model", help="Only of this model.")]
KeyId = Annotated[str | None, typer.Option("--key", help="Only of this key, by its id.")]

app = typer.Typer(help="Show who used what at what cost; export it.", invoke_without_command=True)


def register(parent: typer.Typer) -> None:
    """Add `usage` to the command line."""
    parent.add_typer(app, name="usage")


@app.callback()
def usage(
    context: typer.Context,
    *,
    by: By = "team",
    since: Since = "month",
    until: Until = None,
    team: Team = None,
    model: ModelName = None,
    key: KeyId = None,
    priority: Annotated[str | None, typer.Option(help="Only interactive, or only batch.")] = None,
    as_json: AsJson = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Show who used what and what it costs, summed by whole hours (UTC).

    Below it: how much of each pool's capacity interactive requests and batch work used.
    """
    if context.invoked_subcommand is not None:
        return
    from inferd.api.bill_admin import dimensions, usage_of
    from inferd.cli.bill_reading import currency, moment, run
    from inferd.errors import InvalidField
    from inferd.storage.rollup import HourFilter

    try:
        groups = dimensions(by)
    except InvalidField as error:
        raise typer.BadParameter(error.message, param_hint="--by") from error
    where = HourFilter(
        since_us=moment(since, "--since"),
        until_us=moment(until, "--until"),
        team=team,
        model=model,
        key_id=key,
        priority=priority,
    )
    answer = run(config, lambda db: usage_of(db, where, groups, currency(config)))
    if as_json:
        typer.echo(json.dumps(answer))
        return
    from inferd.cli.bill_view import capacity_table, usage_table
    from inferd.cli.tables import show

    if not answer["groups"]:
        typer.echo(f"Nothing was used{_span(answer)}.", err=True)
    else:
        typer.echo(f"Usage{_span(answer)}, in {answer['currency']}:", err=True)
        show(usage_table(answer))
    if answer["capacity"]:
        typer.echo("\nCapacity, and what it was used for:", err=True)
        show(capacity_table(answer["capacity"]))


@app.command()
def export(
    format_: Annotated[str, typer.Option("--format", help="csv, jsonl or parquet.")] = "csv",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; else standard output.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="From when, as in `inferd usage`.")] = None,
    until: Until = None,
    team: Team = None,
    model: ModelName = None,
    key: KeyId = None,
    *,
    capacity: Annotated[
        bool, typer.Option(help="The hours of each pool's capacity instead of requests.")
    ] = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Write the ledger's rows, oldest first. There is no prompt and no answer in them."""
    from inferd.cli.bill_reading import moment, run
    from inferd.cli.ledger_export import hours, ledger, write
    from inferd.storage.capacity import CapacityFilter
    from inferd.storage.usage import UsageFilter

    if format_ not in FORMATS:
        raise typer.BadParameter(f"one of {', '.join(FORMATS)}", param_hint="--format")
    if format_ == "parquet" and out is None:
        raise typer.BadParameter("a parquet file needs --out FILE", param_hint="--out")
    begin, end = moment(since, "--since"), moment(until, "--until")
    if capacity:
        if team is not None or key is not None:
            raise typer.BadParameter("capacity is nobody's own: leave out --team and --key")
        query = hours(CapacityFilter(since_us=begin, until_us=end, model=model))
    else:
        where = UsageFilter(since_us=begin, until_us=end, team=team, model=model, key_id=key)
        query = ledger(where)
    rows = run(config, lambda db: write(db, query, format_, out))
    typer.echo(f"{rows:,} rows{f' in {out}' if out else ''}.", err=True)


def _span(answer: dict[str, Any]) -> str:
    from inferd.cli.bill_view import time_text

    since, until = answer["since"], answer["until"]
    told = f" since {time_text(since)}" if since is not None else ""
    return told + (f" until {time_text(until)}" if until is not None else "")
