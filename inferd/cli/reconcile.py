"""`inferd reconcile`: the ledger against the engines' own counters."""

from __future__ import annotations

import json

import typer

from inferd.cli.config import CONFIG, AsJson, ConfigPath
from inferd.cli.failure import FAILED


def register(parent: typer.Typer) -> None:
    """Add `reconcile` to the command line."""
    parent.command()(reconcile)


def reconcile(as_json: AsJson = False, config: ConfigPath = CONFIG) -> None:
    """Hold the ledger against the engines' own counters.

    To the token, since each engine's start; every estimated request is listed. Exit code 1 if
    something is left over: requests in flight are counted by one side only, so ask again when
    nothing runs.
    """
    from inferd.cli.server_place import ask_server

    answer = ask_server(config, "GET", "reconcile")
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        from inferd.cli.bill_view import balance_view
        from inferd.cli.tables import show

        show(balance_view(answer))
    if not answer["balanced"]:
        raise typer.Exit(FAILED)
