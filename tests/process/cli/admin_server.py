"""A server that has only what `inferd keys` and `inferd teams` talk to: lock, database, admin API.

Its argument is an inferd.toml. Prints the port of the admin API once it listens; ends with its
standard input.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop
from starlette.routing import Router

from inferd.api.admin import AdminApi
from inferd.api.admin_auth import AdminAuth, load_or_create_admin_key
from inferd.api.http_protocol import ConnectionLimits
from inferd.api.key_admin import KeyAdmin
from inferd.api.listener import Listener
from inferd.api.middleware import Envelope
from inferd.config.address import parse_address
from inferd.config.load import load_config
from inferd.quota.keys import KeyIndex
from inferd.storage.database import Database
from inferd.storage.lock import SERVE, hold
from tests.fakes.running_database import running

LIMITS = ConnectionLimits(connections_max=10, head_s_max=10.0, stall_s=30.0)


async def main(path: Path) -> None:
    loaded = load_config(path)
    config = loaded.config
    state_dir = loaded.resolve(config.server.state_dir)
    async with (
        hold(state_dir, SERVE) as lock,
        running(Database.open(state_dir / "inferd.db")) as db,
    ):
        keys = await KeyIndex.load(db, [team.name for team in config.teams])
        api = AdminApi(KeyAdmin(keys, lambda: config))
        auth = AdminAuth(Router(api.routes()), load_or_create_admin_key(state_dir))
        app = Envelope(auth, count=lambda *_: None, operator=True)
        listener = Listener(parse_address(config.server.admin_listen), "[server].admin_listen")
        async with asyncio.TaskGroup() as group:
            group.create_task(listener.run(app, LIMITS))
            lock.publish(str(listener.address))
            sys.stdout.write(f"{listener.address.port}\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.read)
            listener.stop()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
