"""`inferd why REQUEST_ID`: one request's life on one screen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from inferd.cli.config import CONFIG, AsJson, ConfigPath

if TYPE_CHECKING:
    from pathlib import Path

Answer = dict[str, Any]


def register(parent: typer.Typer) -> None:
    """Add `why` to the command line."""
    parent.command()(why)


def why(
    request_id: Annotated[
        str, typer.Argument(metavar="REQUEST_ID", help="The x-request-id, or the response's id.")
    ],
    text: Annotated[
        bool,
        typer.Option(
            "--text", help="What was asked and answered, if its team keeps that; it is audited."
        ),
    ] = False,
    as_json: AsJson = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Show what became of one request, and why.

    Waits, placement, speed, tokens and cost, or the reason of its refusal.
    """
    if text:
        _show_text(_text(request_id.strip(), config), as_json=as_json)
        return
    answer = _life(request_id.strip(), config)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    from inferd.cli.bill_reading import currency
    from inferd.cli.bill_view import life_view, refusal_view
    from inferd.cli.tables import show

    refused = answer["object"] == "refusal"
    show(refusal_view(answer) if refused else life_view(answer, currency(config)))


def _show_text(answer: Answer, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(answer))
        return
    from inferd.cli.stream_text import joined

    typer.echo(f"POST {answer['path']}", err=True)
    typer.echo(answer["request"])
    typer.echo(f"Answer{', cut' if answer['cut'] else ''}:", err=True)
    typer.echo(joined(answer["answer"]))


def _text(request_id: str, config: Path) -> Answer:
    """From the running server, which writes down who looks."""
    from inferd.cli.server_place import ask_server

    text: Answer = ask_server(config, "POST", f"requests/{quote(request_id, safe='')}/text")
    return text


def _life(request_id: str, config: Path) -> Answer:
    """From the running server, which also knows what it refused a moment ago; else the file."""
    from inferd.api.bill_admin import life_of
    from inferd.cli.bill_reading import run
    from inferd.cli.server_place import ask_server, find_server

    if find_server(config).holder() is None:
        return run(config, lambda db: life_of(db, request_id))
    life: Answer = ask_server(config, "GET", f"requests/{quote(request_id, safe='')}")
    return life
