"""Where the server of an inferd.toml is: its state folder, its addresses, and whether it runs.

Reads [server] alone: a file that is being edited, or that names a variable which only the server's
environment has, must not keep anybody from looking at the server that runs.
"""

from __future__ import annotations

import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferd.cli.admin_client import AdminClient, connect
from inferd.cli.hello import command_name
from inferd.errors import ConfigError, StartError
from inferd.storage.lock import Holder, running_server


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """As [server] says, which the running server need not have been started with."""

    config: Path
    state_dir: Path
    listen: str
    admin_listen: str

    def holder(self) -> Holder | None:
        """The running server, if there is one."""
        return running_server(self.state_dir)

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[AdminClient]:
        """The admin API of the running server.

        Raises:
            NoServer: none runs here.
            StorageError: its admin key cannot be read.
        """
        holder = self.holder()
        if holder is None:
            raise NoServer(
                f"No server runs on {self.state_dir}. Start one: {command_name()} serve --config"
                f" {self.config}"
            )
        async with connect(holder.admin or self.admin_listen, self.state_dir) as client:
            yield client


class NoServer(StartError):
    """What was asked needs a running server, and there is none."""


def find_server(config: Path) -> ServerPlace:
    """The place of the server that `config` describes.

    Raises ConfigError if the file cannot be read, or says nothing that can be used.
    """
    try:
        table = tomllib.loads(config.read_text(encoding="utf-8")).get("server", {})
    except (OSError, ValueError):
        place = _place(config, {})
        if config.exists() and place.holder() is not None:
            return place  # its file was broken after it had started
        from inferd.config.load import load_config

        load_config(config)  # which says what is wrong
        raise ConfigError([f"{config}: cannot be read"]) from None
    return _place(config, table if isinstance(table, dict) else {})


def ask_server(config: Path, method: str, path: str) -> Any:  # noqa: ANN401 - as JSON is
    """One call of the admin API of the running server.

    Raises:
        NoServer: none runs.
    """
    import asyncio

    async def ask() -> Any:  # noqa: ANN401
        async with find_server(config).admin() as admin:
            return await admin.call(method, path)

    return asyncio.run(ask())


def _place(config: Path, table: dict[str, Any]) -> ServerPlace:
    def text(key: str) -> str:
        value = table.get(key)
        if isinstance(value, str):
            return value
        from inferd.config.schema import Server

        return str(Server.model_fields[key].default)

    return ServerPlace(
        config=config,
        state_dir=config.absolute().parent / text("state_dir"),
        listen=text("listen"),
        admin_listen=text("admin_listen"),
    )
