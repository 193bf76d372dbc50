"""A whole inferd on real sockets, in the test's own loop, before engines that others run.

`gateway` starts the App as the command line does, with attached workers, and stops it in order. The
engines may be shared between tests: what a test leaves armed or running there is taken back.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import openai

from inferd.api.admin_auth import read_admin_key
from inferd.app import App
from inferd.clock import monotonic
from inferd.config.address import Address
from inferd.config.change import Change
from inferd.config.load import load_config
from inferd.inference import SYSTEM_TEAM, Priority
from inferd.routing.scheduler import Scheduler
from inferd.storage.usage import UsageFilter, UsageRow, rows
from inferd.workers.base import WorkerBase
from inferd.workers.states import WorkerState
from tests.fakes.engines import EngineProcess, RunningEngine, connected

MODEL = "chat"
TEAM = "search"
POOL = "chat@1"
SERVER: Mapping[str, object] = {
    "listen": "127.0.0.1:0",
    "admin_listen": "127.0.0.1:0",
    "state_dir": "state",
    "unready_s": 0,
    "stall_s": 1.0,
    "body_timeout_s": 1.0,
    "shutdown_grace_s": 5.0,
    "request_deadline_s": 30.0,
}
CHAT: Mapping[str, object] = {
    "name": MODEL,
    "aliases": ["gpt-test"],
    "default_version": "1",
    "context_tokens_max": 4_096,
    "output_tokens_max": 2_048,
    # Tests of queues hold workers as long as they like: nobody is refused for being late.
    "targets": {"ttft_ms": 600_000, "tpot_ms": 60_000},
}
START_S_MAX = 20.0
REST_S_MAX = 5.0
POLL_S = 0.01

Section = Mapping[str, object]


def toml(values: Section) -> str:
    """Keys and plain values of one table, a line each."""
    return "\n".join(f"{key} = {_value(value)}" for key, value in values.items()) + "\n"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def attached(*engines: EngineProcess, slots: int = 8) -> list[Section]:
    """The `attached` list of a version."""
    return [{"url": engine.base_url, "inflight_max": slots} for engine in engines]


def config_text(
    workers: list[Section],
    *,
    server: Section | None = None,
    model: Section | None = None,
    queue: Section | None = None,
    version: Section | None = None,
    team: Section | None = None,
    more: str = "",
) -> str:
    """An inferd.toml with one model, one version and one team; `more` is added as it is."""
    return "\n".join(
        [
            "[server]",
            toml({**SERVER, **(server or {})}),
            "[[models]]",
            toml({**CHAT, **(model or {})}),
            "[models.queue]",
            toml(queue or {}),
            "[[models.versions]]",
            toml({"version": "1", "attached": workers, **(version or {})}),
            "[[teams]]",
            toml({"name": TEAM, **(team or {})}),
            more,
        ]
    )


async def until(condition: Callable[[], object], within_s: float = START_S_MAX) -> None:
    """Until something inside inferd is so: what it does not tell by an event is looked at."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)


class Gateway:
    """A running inferd, one key of team `search`, and a client."""

    secrets: set[str] = set()  # noqa: RUF012 - of all gateways: no log may hold any of them

    def __init__(
        self, app: App, public: Address, admin: Address, http: aiohttp.ClientSession
    ) -> None:
        self.app = app
        self.public = public
        self.admin = admin
        self.http = http
        self.key = ""
        self.admin_key = read_admin_key(app.node.loaded.resolve(app.node.config.server.state_dir))
        self.secrets.add(self.admin_key)
        self.engines: list[RunningEngine] = []
        self.sections: dict[str, Any] = {}
        self.running: asyncio.Task[None] | None = None
        """`App.run`: done when inferd has stopped."""

    @property
    def base_url(self) -> str:
        return f"http://{self.public}"

    @property
    def engine(self) -> RunningEngine:
        (engine,) = self.engines
        return engine

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    async def new_key(self, team: str = TEAM, **more: Any) -> str:
        """Make one through the admin API, which is the only thing that ever shows it."""
        answer = await self.ask_admin("POST", "/admin/v1/keys", {"team": team, **more})
        key = answer["secret"]
        assert isinstance(key, str)
        self.secrets.add(key)
        return key

    def openai(self, **more: Any) -> openai.AsyncOpenAI:
        """The SDK as a client uses it, without its own retries unless asked for."""
        options = {"api_key": self.key, "max_retries": 0, **more}
        return openai.AsyncOpenAI(base_url=f"{self.base_url}/v1", **options)

    def post(self, body: Any, **more: Any) -> Any:
        """POST a chat completion; what comes back is aiohttp's context manager."""
        url = f"{self.base_url}/v1/chat/completions"
        return self.http.post(url, json=body, headers=self.headers, **more)

    async def ask_admin(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        """A call of the admin API, which must end with `status`."""
        url = f"http://{self.admin}{path}"
        key = {"Authorization": f"Bearer {self.admin_key}"}
        async with self.http.request(method, url, json=body, headers=key) as answer:
            assert answer.status == status, await answer.text()
            return await answer.json()

    async def metrics(self) -> str:
        """The exposition of the admin listener."""
        key = {"Authorization": f"Bearer {self.admin_key}"}
        async with self.http.get(f"http://{self.admin}/metrics", headers=key) as answer:
            assert answer.status == 200
            return await answer.text()

    async def rows(self) -> list[UsageRow]:
        """The ledger, oldest first, once everything is settled; without warm-ups."""
        await self.at_rest()
        await self.app.node.db.flush()
        found = await rows(self.app.node.db, UsageFilter(), limit=1_000)
        return [row for row in reversed(found) if row.team != SYSTEM_TEAM]

    async def row(self) -> UsageRow:
        """The only row of the ledger."""
        (row,) = await self.rows()
        return row

    async def at_rest(self, within_s: float = REST_S_MAX) -> None:
        """Until nothing is claimed any more. Raises AssertionError naming what still is."""
        deadline = monotonic() + within_s
        while held := self.held():
            assert monotonic() < deadline, f"after {within_s:g} s: {held}"
            await asyncio.sleep(POLL_S)

    def held(self) -> dict[str, object]:
        """What is claimed now, by name; empty at rest."""
        app = self.app
        held: dict[str, object] = {
            "requests": app.node.dispatch.in_flight,
            "settlements": app.node.ledger.open_count,
        }
        for scheduler in self.schedulers:
            pool = scheduler.pool
            held[f"leases of {pool}"] = scheduler.leases_open
            held[f"slots of {pool}"] = scheduler.inflight
            held[f"waiting for {pool}"] = sum(map(scheduler.depth, Priority))
        for team in app.node.buckets.snapshot(monotonic()):
            held[f"tokens of {team.team}"] = team.outstanding_tokens
            held[f"requests of {team.team}"] = team.outstanding_requests
        return {name: count for name, count in held.items() if count}

    def write_config(self, workers: list[Section], **sections: Any) -> None:
        """Replace inferd.toml; nothing happens before a reload."""
        self.app.node.loaded.path.write_text(config_text(workers, **{**self.sections, **sections}))

    async def reload(self, workers: list[Section], **sections: Any) -> list[Change]:
        """Replace inferd.toml and do what SIGHUP does."""
        self.write_config(workers, **sections)
        return await self.app.node.reload()

    async def until_ready(self, workers: int) -> None:
        """Until so many workers take requests."""
        await until(lambda: sum(len(one.ready_targets) for one in self.schedulers) == workers)

    @property
    def schedulers(self) -> Iterable[Scheduler]:
        return self.app.node.fleet.schedulers.values()


class _Watching:
    """The spectator: says when the addresses are known and when enough workers are ready."""

    def __init__(self, workers: int) -> None:
        self.listens: asyncio.Future[tuple[Address, Address]] = asyncio.Future()
        self.enough = asyncio.Event()
        self.failed: list[str] = []
        self._ready: set[str] = set()
        self._wanted = workers
        if not workers:
            self.enough.set()

    def listening(self, public: Address, admin: Address) -> None:
        self.listens.set_result((public, admin))

    def worker_changed(self, worker: WorkerBase, before: WorkerState, after: WorkerState) -> None:
        del before
        if after is WorkerState.READY:
            self._ready.add(worker.id)
        elif after is WorkerState.FAILED and not self.enough.is_set():
            self.failed.append(f"{worker.id}: {worker.reason}")
            self.enough.set()
        if len(self._ready) >= self._wanted:
            self.enough.set()

    def stopping(self) -> None:
        """Tests ask for it themselves."""


@asynccontextmanager
async def gateway(
    folder: Path,
    *processes: EngineProcess,
    slots: int = 8,
    ready: int | None = None,
    **sections: Any,
) -> AsyncIterator[Gateway]:
    """Run inferd on `folder`/inferd.toml until the scope is left; then it stops in order.

    `ready`: how many workers to wait for; all of them unless given. `sections`: see `config_text`;
    with `workers` among them, those are attached instead of `processes`.
    """
    path = folder / "inferd.toml"
    workers = sections.pop("workers", None) or attached(*processes, slots=slots)
    path.write_text(config_text(workers, **sections))
    watching = _Watching(len(processes) if ready is None else ready)
    app = App(load_config(path), watching)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(_borrowed(process)) for process in processes]
        http = await stack.enter_async_context(aiohttp.ClientSession())
        stack.callback(gc.unfreeze)  # a process of its own keeps what it freezes; this one goes on
        group = await stack.enter_async_context(asyncio.TaskGroup())
        running = group.create_task(app.run())
        async with asyncio.timeout(START_S_MAX):
            public, admin = await watching.listens
            await watching.enough.wait()
        inferd = Gateway(app, public, admin, http)
        inferd.engines, inferd.sections, inferd.running = engines, sections, running
        try:
            assert not watching.failed, watching.failed
            inferd.key = await inferd.new_key()
            yield inferd
        finally:
            await _stopped(app, running)


async def _stopped(app: App, running: asyncio.Task[None]) -> None:
    if not app.stopping:
        app.stop()
    if app.node.dispatch.in_flight:
        app.stop()  # a test that failed in the middle of its streams
    await running


@asynccontextmanager
async def _borrowed(process: EngineProcess) -> AsyncIterator[RunningEngine]:
    """An engine that others use as well: given back without faults and idle."""
    async with connected(process) as engine:
        try:
            yield engine
        finally:
            if process.exit_code is None and process.kind == "fake":
                with suppress(aiohttp.ClientError):
                    await engine.fault("clear")
                    url = f"{engine.base_url}/abort_request"
                    async with engine.http.post(url, json={"abort_all": True}) as answer:
                        assert answer.status == 200
                    await engine.until(running=0, waiting=0)
