"""How commands reach the public API: where it is, and with which key."""

from __future__ import annotations

import os
from pathlib import Path

from inferd.errors import StartError

FIRST_KEY = ".inferd/first.key"
KEY_VARIABLE = "INFERD_API_KEY"


def find_base_url(config: Path) -> str:
    """The API of the server that `config` describes. Raises StartError, ConfigError."""
    from inferd.cli.server_place import find_server
    from inferd.config.address import parse_address

    listen = find_server(config).listen
    try:
        address = parse_address(listen).reachable
    except ValueError as error:
        raise StartError(f"{config}: server.listen: {error}") from error
    if not address.port:
        raise StartError(f"{config}: server.listen names no port: give --base-url")
    return f"http://{address}/v1"


def find_key(key: str | None, key_file: Path | None, config: Path) -> str:
    """The key that was given, or that of the environment, or the first one. Raises StartError."""
    from inferd.cli.hello import checked_key, read_key_file

    if key is None and key_file is None:
        key = os.environ.get(KEY_VARIABLE)
    if key is not None:
        return checked_key(key, "--key or " + KEY_VARIABLE)
    first = config.parent / FIRST_KEY
    if key_file is None and not first.exists():
        raise StartError(
            f"No API key: set {KEY_VARIABLE}, or name a file with --key-file."
            " `inferd keys create --team TEAM` makes one."
        )
    return read_key_file(key_file or first)
