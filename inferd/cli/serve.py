"""`inferd serve`: run the server in the foreground, and show a person how it gets on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferd.cli.config import CONFIG, ConfigPath
from inferd.cli.failure import FAILED, tell
from inferd.errors import InferdError, InvalidKey

if TYPE_CHECKING:
    import logging

    from inferd.app import App
    from inferd.cli.start_display import StartDisplay
    from inferd.config.load import LoadedConfig
    from inferd.workers.base import WorkerBase

LOG_FILE = "inferd.log"
LOG_BYTES_MAX = 16_777_216
"""Of the log file; its previous part is kept beside it."""


def register(parent: typer.Typer) -> None:
    """Add `serve` to the command line."""
    parent.command()(serve)


def serve(
    config: ConfigPath = CONFIG,
    hello: Annotated[
        Path | None,
        typer.Option(
            metavar="KEYFILE",
            help="When the first worker is ready, show how to ask, with the key in this file.",
        ),
    ] = None,
) -> None:
    """Start the workers and serve; Ctrl-C drains and stops.

    SIGTERM does the same: running requests may finish; a second one does not wait for them.
    SIGHUP applies a changed inferd.toml, as `inferd reload` does. Logs are JSON lines on standard
    error; on a terminal, which shows the workers' progress, they go to inferd.log in the state
    folder.
    """
    from inferd import logs
    from inferd.cli.hello import read_key_file
    from inferd.config.load import load_config

    loaded = load_config(config)
    secret = None if hello is None else read_key_file(hello)
    log_path = _log_path(loaded)
    logs.configure(loaded.config.logs.level, None if log_path is None else _log_file(log_path))
    try:
        _run(loaded, hello, secret, log_path)
    except BaseExceptionGroup as group:
        _tell_all(group, log_path)
        raise typer.Exit(FAILED) from group


def _run(
    loaded: LoadedConfig, hello: Path | None, secret: str | None, log_path: Path | None
) -> None:
    import asyncio

    import uvloop

    from inferd.app import App
    from inferd.cli.start_display import StartDisplay
    from inferd.cli.start_output import Lines, Terminal

    def greet(base_url: str, worker: WorkerBase) -> str | None:
        return _greeting(app, base_url, worker, hello, secret)

    output = Terminal() if _is_terminal() else Lines()
    display = StartDisplay(output, loaded.config.server.shutdown_grace_s, greet)
    app = App(loaded, display)
    if log_path is not None:
        display.say(f"Logs go to {log_path}", "dim")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(app, display))


async def _serve(app: App, display: StartDisplay) -> None:
    import asyncio

    async with asyncio.TaskGroup() as group:
        shown = group.create_task(display.run())
        try:
            await app.run()
        finally:
            shown.cancel()
    display.say("inferd has stopped.")


def _greeting(
    app: App, base_url: str, worker: WorkerBase, hello: Path | None, secret: str | None
) -> str | None:
    """How to ask the first model that is ready; None while it is one that the key may not use."""
    from inferd.cli import hello as words
    from inferd.clock import utc_now_us

    command = words.command_name()
    if secret is None:
        ask = f"Ask at {base_url} with a key of a team: {command} keys create --team TEAM"
        return f"{ask}\n{words.next_steps(command)}"
    try:
        caller = app.node.keys.authenticate(secret, utc_now_us())
        models = app.node.pools.visible(caller, app.node.access.team(caller))
    except InvalidKey:
        return (
            f"The key in {hello} is not accepted here. Make one that is:"
            f" {command} keys ensure --team TEAM --file {hello}"
        )
    ready = [model.id for model in models if model.pool == worker.pool]
    if not ready:
        return None
    return words.hello(
        base_url=base_url,
        team=caller.team,
        models=ready + [model.id for model in models if model.id not in ready],
        secret=secret,
        command=command,
    )


def _is_terminal() -> bool:
    import sys

    from rich.console import Console

    return sys.stdout.isatty() and not Console().is_dumb_terminal


def _log_path(loaded: LoadedConfig) -> Path | None:
    """The log's file, where standard error is the terminal that shows the progress."""
    import sys

    if not (_is_terminal() and sys.stderr.isatty()):
        return None
    return loaded.resolve(loaded.config.server.state_dir) / LOG_FILE


def _log_file(path: Path) -> logging.Handler:
    from logging.handlers import RotatingFileHandler

    from inferd.storage.transaction import translated

    with translated(str(path)):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return RotatingFileHandler(path, maxBytes=LOG_BYTES_MAX // 2, backupCount=1)


def _tell_all(group: BaseExceptionGroup[BaseException], log_path: Path | None) -> None:
    """Every reason in it, each once."""
    where = f"; the log, {log_path}, tells more" if log_path else ""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            _tell_all(error, log_path)
        elif isinstance(error, InferdError):
            tell(error)
        else:
            named = str(error) or type(error).__name__
            typer.echo(f"inferd: {named}{where}", err=True)
