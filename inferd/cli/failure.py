"""How a failure is told: a line or more on standard error, never a traceback."""

from __future__ import annotations

import typer

from inferd.errors import ConfigError, InferdError

FAILED = 1
USAGE = 2
"""Exit codes: it could not do what it was asked; it was asked for nothing that it knows."""


def tell(error: InferdError) -> None:
    """Problems of inferd.toml as they are, for they begin with file and line; else who speaks."""
    prefix = "" if isinstance(error, ConfigError) else "inferd: "
    for line in error.message.splitlines():
        typer.echo(prefix + line, err=True)
