"""`inferd audit`: who did what to this inferd."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from inferd.cli.config import CONFIG, AsJson, ConfigPath


def register(parent: typer.Typer) -> None:
    """Add `audit` to the command line."""
    parent.command()(audit)


def audit(
    since: Annotated[str, typer.Option(help="From when: 2026-12-01, or how long ago: 7d.")] = "30d",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 100,
    as_json: AsJson = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Show what admins did, newest first."""
    from inferd.api.bill_admin import action_answer
    from inferd.cli.bill_reading import moment, run
    from inferd.storage.audit import actions

    since_us = moment(since, "--since") or 0
    found = run(config, lambda db: actions(db, since_us, limit))
    if as_json:
        typer.echo(json.dumps([action_answer(one) for one in found]))
        return
    from inferd.cli.bill_view import audit_table
    from inferd.cli.tables import show

    if not found:
        typer.echo("Nothing was done.", err=True)
        return
    show(audit_table(found))
