"""A whole inferd on real sockets, in the test's own loop, before engines that others run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from inferd.app import App
from inferd.config.address import Address
from inferd.config.load import load_config
from inferd.storage.usage import UsageFilter, UsageRow, rows
from inferd.workers.base import WorkerBase
from inferd.workers.states import WorkerState

MODEL = "chat"
TEMPLATE = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
state_dir = "state"
{server}

[[models]]
name = "chat"
aliases = ["gpt-test"]
default_version = "1"
context_tokens_max = 4_096
output_tokens_max = 1_024
{model}

[[models.versions]]
version = "1"
attached = [{attached}]

[[teams]]
name = "search"
{team}
"""


def config_text(urls: Mapping[str, int], *, server: str = "", model: str = "", team: str = "") -> str:
    """An inferd.toml whose workers are these URLs, each with its number of slots."""
    attached = ", ".join(
        f'{{ url = "{url}", inflight_max = {slots} }}' for url, slots in urls.items()
    )
    return TEMPLATE.format(attached=attached, server=server, model=model, team=team)


class Gateway:
    """A running inferd, one key of team `search`, and a client."""

    def __init__(self, app: App, public: Address, admin: Address, http: aiohttp.ClientSession) -> None:
        self.app = app
        self.base_url = f"http://{public}"
        self.admin_url = f"http://{admin}"
        self.http = http
        self.key = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def post(self, body: Any, **more: Any) -> Any:
        """POST a chat completion; what comes back is aiohttp's context manager."""
        url = f"{self.base_url}/v1/chat/completions"
        return self.http.post(url, json=body, headers=self.headers, **more)

    async def rows(self) -> list[UsageRow]:
        """The ledger, newest first, with everything settled so far."""
        await self.app.db.flush()
        return [row for row in await rows(self.app.db, UsageFilter()) if row.team != "system"]

    def assert_at_rest(self) -> None:
        """Nothing is claimed any more."""
        assert self.app.dispatch.in_flight == 0
        assert self.app.ledger.open_count == 0
        for scheduler in self.app.fleet.schedulers.values():
            assert scheduler.leases_open == 0


class _Watching:
    """The spectator: says when the addresses are known and when enough workers are ready."""

    def __init__(self, workers: int) -> None:
        self.listens: asyncio.Future[tuple[Address, Address]] = asyncio.Future()
        self.ready = asyncio.Event()
        self._ready_ids: set[str] = set()
        self._wanted = workers

    def listening(self, public: Address, admin: Address) -> None:
        self.listens.set_result((public, admin))

    def worker_changed(self, worker: WorkerBase, before: WorkerState, after: WorkerState) -> None:
        del before
        if after is WorkerState.READY:
            self._ready_ids.add(worker.id)
        if len(self._ready_ids) >= self._wanted:
            self.ready.set()

    def stopping(self) -> None:
        """Tests ask for it themselves."""


@asynccontextmanager
async def gateway(
    folder: Path, urls: Mapping[str, int], *, ready: int | None = None, **sections: str
) -> AsyncIterator[Gateway]:
    """Run inferd on `folder`/inferd.toml until the scope is left; then it stops in order.

    `ready`: how many workers to wait for; all of them unless given.
    """
    path = folder / "inferd.toml"
    path.write_text(config_text(urls, **sections))
    watching = _Watching(len(urls) if ready is None else ready)
    app = App(load_config(path), watching)
    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
        running = group.create_task(app.run())
        public, admin = await watching.listens
        started = Gateway(app, public, admin, http)
        _, started.key = await app.keys.create("search", "test", None, None)
        if watching._wanted:
            await watching.ready.wait()
        try:
            yield started
        finally:
            if not app.stopping:
                app.stop()
            await running
