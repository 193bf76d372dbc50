"""Teams and keys for a command: through the running server, else in the database under its lock.

Owns that choice. The lock decides, not a guess: who gets it knows that no server runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import typer

from inferd.api.key_admin import Answer, KeyAdmin
from inferd.cli.admin_client import actor, connect
from inferd.cli.failure import FAILED, tell
from inferd.cli.server_place import find_server
from inferd.clock import utc_now_us
from inferd.config.load import LoadedConfig, load_config
from inferd.config.schema import Config
from inferd.errors import InferdError
from inferd.quota.keys import KeyIndex
from inferd.storage import audit
from inferd.storage.database import Database
from inferd.storage.lock import SERVE, StateDirHeld, hold

T = TypeVar("T")

DATABASE_FILE = "inferd.db"


class Admin(Protocol):
    """What commands do with teams and keys; raises InferdError with a message to be shown."""

    async def teams(self) -> list[Answer]: ...
    async def team(self, name: str) -> Answer: ...
    async def keys(self, team: str | None = None) -> list[Answer]: ...
    async def create(
        self,
        team: str,
        name: str = "",
        expires_s: float | None = None,
        models: Sequence[str] | None = None,
        limits: Mapping[str, float] | None = None,
    ) -> Answer: ...
    async def rotate(self, key_id: str, grace_s: float = 0.0) -> Answer: ...
    async def revoke(self, key_id: str) -> Answer: ...
    async def verify(self, secret: str) -> Answer | None: ...


def run(config: Path, purpose: str, action: Callable[[Admin], Awaitable[T]]) -> T:
    """Run one command's work; a failure is told on standard error and ends with exit code 1."""
    try:
        return asyncio.run(_run(config, purpose, action))
    except InferdError as error:
        tell(error)
        raise typer.Exit(FAILED) from error


@asynccontextmanager
async def open_admin(config: LoadedConfig, purpose: str) -> AsyncIterator[Admin]:
    """The server's admin API if one runs on this state folder, else the database itself."""
    state_dir = config.resolve(config.config.server.state_dir)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(hold(state_dir, purpose))
        except StateDirHeld as held:
            if held.holder is None or held.holder.purpose != SERVE:
                raise
            address = held.holder.admin or config.config.server.admin_listen
            yield await stack.enter_async_context(connect(address, state_dir))
            return
        db = await stack.enter_async_context(Database.open(state_dir / DATABASE_FILE))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        writer = group.create_task(db.run())
        stack.callback(writer.cancel)
        teams = [team.name for team in config.config.teams]
        keys = await KeyIndex.load(db, teams)
        yield _NotedKeys(keys, lambda: config.config, db)


class _NotedKeys(KeyAdmin):
    """Writes its actions down, as the running server does with those of its admin API."""

    def __init__(self, keys: KeyIndex, config: Callable[[], Config], db: Database) -> None:
        super().__init__(keys, config)
        self._db = db

    async def create(
        self,
        team: str,
        name: str = "",
        expires_s: float | None = None,
        models: Sequence[str] | None = None,
        limits: Mapping[str, float] | None = None,
    ) -> Answer:
        key = await super().create(team, name, expires_s, models, limits)
        self._note("keys create", f"{key['id']} of team {team}")
        return key

    async def rotate(self, key_id: str, grace_s: float = 0.0) -> Answer:
        key = await super().rotate(key_id, grace_s)
        self._note("keys rotate", key_id)
        return key

    async def revoke(self, key_id: str) -> Answer:
        key = await super().revoke(key_id)
        self._note("keys revoke", key_id)
        return key

    def _note(self, action: str, target: str) -> None:
        audit.record(
            self._db,
            audit.Action(
                ts_us=utc_now_us(),
                actor=actor(),
                action=f"inferd {action}",
                target=target,
                status=0,
                request_id="",
            ),
        )


async def _run(config: Path, purpose: str, action: Callable[[Admin], Awaitable[T]]) -> T:
    place = find_server(config)
    # A running server need not read the file again, which may be half-way through a change.
    runs = place.holder() is not None
    async with place.admin() if runs else open_admin(load_config(config), purpose) as admin:
        try:
            return await action(admin)
        except InferdError as error:
            # Raised again outside, where no task group wraps it.
            failure = error
    raise failure
