"""The inferd under test: a process with a folder of its own, killed and started again at will.

Owns its processes: nothing of them is left when the scope is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from inferd.clock import monotonic
from inferd.storage.usage import UsageRow
from tests.fakes.engines import DEMO_MODEL, ENGINE_ENVIRONMENT, REPOSITORY, free_port
from tests.fakes.installed_engine import install_fake_engine, make_model
from tests.fakes.served import DUMMY_ARGS, session_of

MODEL = "chat"
POOL = "chat@1"
TEAMS = ("search", "docs", "batch")
START_S_MAX = 180.0
STOP_S_MAX = 60.0
N = TypeVar("N", bound="ChaosNode")
HEAD = """
[engine]
environment = "{environment}"

[server]
listen = "127.0.0.1:{port}"
admin_listen = "127.0.0.1:{admin}"
state_dir = "state"
unready_s = 0
"""
"""What all nodes of soaks have; more of the server may follow."""
TEXT = """
shutdown_grace_s = 10
request_deadline_s = 30
stall_s = 5

[[models]]
name = "chat"
default_version = "1"
context_tokens_max = 4_096
output_tokens_max = 512

[models.targets]
ttft_ms = 10_000
tpot_ms = 1_000

[models.queue]
wait_s_max = {wait_s}

[[models.versions]]
version = "1"
weights = "{weights}"

[models.versions.engine]
device = "cpu"
running_max = 8
kv_tokens_max = 16_384
chunked_prefill_tokens = 512
extra_args = {extra_args}

[models.versions.workers]
count = {count}
drain_s = {drain_s}
restart_backoff_s = 0.5
restart_backoff_s_max = 2
restarts_per_hour_max = 1_000

[models.versions.watchdog]
silence_s = {silence_s}
unanswered_s = 5
health_idle_s = 20

[[teams]]
name = "search"
weight = {weight}

[[teams]]
name = "docs"
tokens_per_s = 2_000
burst_tokens = 20_000

[[teams]]
name = "batch"
priority_max = "batch"
rank = -1
"""


@dataclass
class ChaosNode:
    """One inferd, by its folder."""

    folder: Path
    real: bool
    workers: int
    http: aiohttp.ClientSession
    port: int = field(default_factory=free_port)
    admin: int = field(default_factory=free_port)
    keys: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None
    killed_at: list[float] = field(default_factory=list)
    """Each time it was ended with SIGKILL."""
    leaders: set[int] = field(default_factory=set)
    """Leaders of all workers that it has ever shown."""
    up_at: list[float] = field(default_factory=list)
    """Each time it listened again."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/chat/completions"

    @property
    def config(self) -> Path:
        return self.folder / "inferd.toml"

    def write_config(self, **changed: int) -> None:
        """Write inferd.toml with these settings changed; a reload is another act."""
        self.settings.update(changed)
        values = {"count": self.workers, "drain_s": 5, "weight": 2, **self.settings}
        parts = {"kind": "parts", "count": 2}
        flags = ["--fault", json.dumps(parts)]
        text = TEXT.format(
            weights=DEMO_MODEL if self.real else "model",
            extra_args=json.dumps(DUMMY_ARGS if self.real else flags, ensure_ascii=True),
            silence_s=5 if self.real else 2,
            wait_s=10,
            **values,
        )
        self.put_config(text)

    def put_config(self, text: str) -> None:
        """Write inferd.toml: `HEAD` and then `text`."""
        environment = ENGINE_ENVIRONMENT if self.real else "engine"
        head = HEAD.format(port=self.port, admin=self.admin, environment=environment)
        self.config.write_text(head + text)

    async def prepare(self, speed: float) -> None:
        """Folder, engine, keys: before the first start."""
        if not self.real:
            self.install(speed)
        self.write_config()
        for team in TEAMS:
            await self.create_key(team)

    def install(self, speed: float) -> None:
        """The fake engine and its model."""
        install_fake_engine(self.folder / "engine", speed=speed)
        make_model(self.folder / "model")

    async def create_key(self, team: str) -> None:
        out, code = await self.command("keys", "create", "--team", team, "--quiet")
        assert code == 0, f"no key for {team}"
        self.keys[team] = out.strip()

    async def command(self, *arguments: str) -> tuple[str, int]:
        """An `inferd` command in the folder: what it wrote to standard output, its exit code."""
        process = await self._inferd(*arguments)
        out, _ = await process.communicate()
        assert process.returncode is not None
        return out.decode(), process.returncode

    async def start(self, ready: int = 1) -> None:
        """`inferd serve`, until so many workers take requests."""
        with (self.folder / "serve.log").open("ab") as log:
            self.process = await self._inferd("serve", output=log.fileno())
        await self.until_ready(ready)
        self.up_at.append(monotonic())

    async def until_ready(self, ready: int = 1) -> None:
        """Until it answers and so many workers take requests."""
        assert self.process is not None
        async with asyncio.timeout(START_S_MAX):
            while not (status := await self.status()) or len(self.ready(status)) < ready:
                assert self.process.returncode is None, self.log_end()
                await asyncio.sleep(0.1)

    async def kill(self) -> None:
        """SIGKILL to inferd alone: what it has started goes on."""
        assert self.process is not None
        self.killed_at.append(monotonic())
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.terminate()
        async with asyncio.timeout(STOP_S_MAX):
            return await self.process.wait()

    async def end(self) -> None:
        """Kill it and every worker that it has ever shown."""
        await self.status()
        if self.process is not None and self.process.returncode is None:
            await self.kill()
        for leader in self.leaders:
            _reap(leader)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def status(self) -> dict[str, Any]:
        """The status page; empty while nobody answers."""
        try:
            async with self.http.get(
                f"http://127.0.0.1:{self.admin}/admin/v1/status",
                headers=self._admin_key(),
                timeout=aiohttp.ClientTimeout(5),
            ) as answer:
                body: dict[str, Any] = await answer.json()
                self.leaders |= {worker["pid"] for worker in self.workers_of(body)} - {None}
                return body
        except (aiohttp.ClientError, OSError, TimeoutError):
            return {}

    async def post(self, path: str) -> int:
        """An admin call without a body; 0 when nobody answers."""
        try:
            async with self.http.post(
                f"http://127.0.0.1:{self.admin}{path}",
                headers=self._admin_key(),
                timeout=aiohttp.ClientTimeout(10),
            ) as answer:
                return answer.status
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0

    async def metrics(self) -> str:
        async with self.http.get(
            f"http://127.0.0.1:{self.admin}/metrics", headers=self._admin_key()
        ) as answer:
            return await answer.text()

    @staticmethod
    def workers_of(status: dict[str, Any]) -> list[dict[str, Any]]:
        return [worker for pool in status.get("pools", []) for worker in pool["workers"]]

    def ready(self, status: dict[str, Any]) -> list[dict[str, Any]]:
        return [worker for worker in self.workers_of(status) if worker["state"] == "ready"]

    def rows(self) -> list[UsageRow]:
        """The ledger as it is on disk."""
        names = ", ".join(UsageRow.__dataclass_fields__)
        return [UsageRow(**row) for row in self.select(f"SELECT {names} FROM requests")]  # noqa: S608

    def select(self, query: str) -> list[dict[str, Any]]:
        """Rows of the database as it is on disk."""
        place = f"file:{self.folder / 'state' / 'inferd.db'}?mode=ro"
        with closing(sqlite3.connect(place, uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query)]

    def log_end(self, chars: int = 4_000) -> str:
        return (self.folder / "serve.log").read_text(errors="replace")[-chars:]

    def _admin_key(self) -> dict[str, str]:
        key = (self.folder / "state" / "admin.key").read_text().strip()
        return {"Authorization": f"Bearer {key}"}

    async def _inferd(
        self, *arguments: str, output: int = asyncio.subprocess.PIPE
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "inferd",
            *arguments,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output if output != asyncio.subprocess.PIPE else asyncio.subprocess.DEVNULL,
        )


@asynccontextmanager
async def chaos_node(
    folder: Path, *, real: bool, workers: int, speed: float, kind: type[N]
) -> AsyncIterator[N]:
    """A prepared node, not started. Whatever it and its restarts have left is killed at the end."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        node = kind(folder, real, workers, http)
        await node.prepare(speed)
        try:
            yield node
        finally:
            await node.end()


def _reap(leader: int) -> None:
    """Kill what is left of a session."""
    for pid in session_of(leader):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
