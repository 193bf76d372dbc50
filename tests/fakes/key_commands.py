"""`inferd keys` and `inferd teams` called in this process, in a folder with a small inferd.toml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner, Result

from inferd.cli import keys, teams

CONFIG = """
[server]
admin_listen = "127.0.0.1:{port}"
state_dir = "state"

[[models]]
name = "small"
aliases = ["fast"]
default_version = "1"
context_tokens_max = 4096
output_tokens_max = 512
[[models.versions]]
version = "1"
weights = "models/small"

[[teams]]
name = "search"
weight = 2
tokens_per_s = 20_000
burst_tokens = 200_000

[[teams]]
name = "ads"
"""


class KeyCommands:
    """The commands `inferd keys` and `inferd teams` in a folder with an inferd.toml."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.config = folder / "inferd.toml"
        self.state_dir = folder / "state"
        self.config.write_text(CONFIG.format(port=port))
        self._app = typer.Typer()
        keys.register(self._app)
        teams.register(self._app)

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(self._app, [*arguments, "--config", str(self.config)])

    def json(self, *arguments: str) -> Any:
        result = self(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def secret(self, *arguments: str) -> str:
        result = self(*arguments, "--quiet")
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        return result.stdout.strip()
