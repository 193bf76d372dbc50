"""The `inferd` command: joins all commands, and turns their failures into words and exit codes.

Command modules import what is heavy where it is used, so that `inferd --help` is quick; a test
looks at what it imports.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from inferd.cli import (
    audit,
    batch,
    chat,
    config,
    engine,
    gpus,
    keys,
    logs,
    pools,
    reconcile,
    recordings,
    reload,
    serve,
    simulate,
    status,
    teams,
    top,
    usage,
    why,
    workers,
)
from inferd.cli.failure import FAILED, USAGE, tell
from inferd.errors import InferdError

FIRST_MINUTES = (
    ("inferd engine install", "the engine in its own environment, a small model"),
    ("inferd init", "an inferd.toml for this machine, to read and change"),
    ("inferd keys create --team demo", "an API key: export it as INFERD_API_KEY"),
    ("inferd serve", "start the workers and listen"),
    ("inferd chat", "talk to the model, from another shell"),
)

PANELS = {
    "Set up": ("engine", "init", "check", "config"),
    "Teams": ("teams", "keys"),
    "Run": ("serve", "reload", "chat", "batch"),
    "Look": ("status", "top", "pools", "workers", "gpus", "logs", "why", "simulate"),
    "Bill": ("usage", "reconcile", "recordings", "audit"),
}
"""The panels of the first screen and what is in each, in order."""

OPTIONS = (
    ("--version", "Show the version."),
    ("--install-completion", "Have this shell complete commands and options."),
    ("-h, --help", "Show this message; after a command, tell all about it."),
)
SCREEN_COLUMNS = 80


class _Commands(TyperGroup):
    """Draws the first screen itself: in order, and without the time that rich takes to load."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer's own context
        del ctx
        return [name for names in PANELS.values() for name in names]

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        formatter.write(f"{ctx.command.help}\n\nUsage: inferd COMMAND [ARGUMENTS] [OPTIONS]\n")
        _panel(formatter, "The first five minutes", FIRST_MINUTES)
        for title, names in PANELS.items():
            _panel(
                formatter,
                title,
                [(name, self.commands[name].get_short_help_str(SCREEN_COLUMNS)) for name in names],
            )
        _panel(formatter, "Options", OPTIONS)
        formatter.write(
            "\nEvery command takes --help. They read ./inferd.toml, or the file that --config"
            " names.\n"
        )


def _panel(formatter: Any, title: str, rows: Sequence[tuple[str, str]]) -> None:  # noqa: ANN401
    width = max(10, *(len(name) for name, _ in rows))
    formatter.write(f"\n{typer.style(title, bold=True)}\n")
    for name, what in rows:
        formatter.write(f"  {typer.style(name.ljust(width), fg='cyan')}  {what}\n")


def make_app() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        name="inferd",
        cls=_Commands,
        help="Serve open-weight models on your own GPUs to your own teams.",
        invoke_without_command=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for module in (
        engine,
        config,
        teams,
        keys,
        serve,
        reload,
        chat,
        batch,
        status,
        pools,
        top,
        workers,
        gpus,
        logs,
        why,
        simulate,
        usage,
        reconcile,
        recordings,
        audit,
    ):
        module.register(app)
    return app


def main() -> None:
    """Run the command line of this process, and exit."""
    try:
        typer.main.get_command(make_app())(prog_name="inferd")
    except InferdError as error:
        tell(error)
        sys.exit(FAILED)


def _show_version(asked: bool) -> None:
    if asked:
        from inferd import __version__

        typer.echo(f"inferd {__version__}")
        raise typer.Exit


def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    del version
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(USAGE)
