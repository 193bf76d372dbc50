"""The `inferd` command: joins all commands, and turns their failures into words and exit codes.

Command modules import what is heavy where it is used, so that `inferd --help` is quick; a test
looks at what it imports.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from inferd.cli import chat, config, engine, keys, logs, reload, serve, status, teams, workers
from inferd.cli.failure import FAILED, tell
from inferd.errors import InferdError

HELP = """Serve open-weight models on your own GPUs to your own teams.

\b
[bold]The first five minutes[/bold]
  [cyan]inferd engine install[/cyan]       the engine in an environment of its own, a small model
  [cyan]inferd init[/cyan]                 an inferd.toml for this machine, to read and change
  [cyan]inferd keys create --team demo[/cyan]
                              an API key, shown once: export it as INFERD_API_KEY
  [cyan]inferd serve[/cyan]                starts the workers and listens
  [cyan]inferd chat[/cyan]                 talk to the model, from another shell

Every command takes --help. All read ./inferd.toml unless --config names another file.
"""

PANELS = {
    "Set up": ("engine", "init", "check", "config"),
    "Teams": ("teams", "keys"),
    "Run": ("serve", "reload", "chat"),
    "Look": ("status", "workers", "logs"),
}
"""The panels of the help and what is in each, in order."""


class _Commands(TyperGroup):
    """Lists commands as `PANELS` does."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer's own context
        del ctx
        return [name for names in PANELS.values() for name in names if name in self.commands]


def make_app() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        name="inferd",
        cls=_Commands,
        help=HELP,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for module in (engine, config, teams, keys, serve, reload, chat, status, workers, logs):
        module.register(app)
    panel_of = {name: panel for panel, names in PANELS.items() for name in names}
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        command.rich_help_panel = panel_of[str(name)]
    for group in app.registered_groups:
        group.rich_help_panel = panel_of[str(group.name)]
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
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    del version
