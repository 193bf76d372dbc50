"""The inferd under test for batches: a process in a folder, killed and started again at will.

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
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from inferd.storage.usage import UsageRow
from tests.fakes.engines import DEMO_MODEL, ENGINE_ENVIRONMENT, REPOSITORY, free_port
from tests.fakes.served import session_of

START_S_MAX = 180.0
LOOK_S = 0.05
TEXT = """
[server]
listen = "127.0.0.1:{port}"
admin_listen = "127.0.0.1:{admin}"
state_dir = "state"
unready_s = 0

[engine]
environment = "{environment}"

[files]
store = "files"

[[models]]
name = "chat"
default_version = "1"
context_tokens_max = 4_096
output_tokens_max = 2_048

[models.targets]
ttft_ms = 10_000
tpot_ms = 1_000

[[models.versions]]
version = "1"
{version}

[[teams]]
name = "search"
"""
REAL = """
weights = "{weights}"

[models.versions.engine]
device = "cpu"
running_max = 16
queued_max = 64
kv_tokens_max = 16_384
chunked_prefill_tokens = 512
tool_call_parser = "qwen25"
"""


@dataclass
class BatchNode:
    """One inferd, by its folder."""

    folder: Path
    version: str
    port: int = field(default_factory=free_port)
    admin: int = field(default_factory=free_port)
    key: str = ""
    process: asyncio.subprocess.Process | None = None
    leaders: set[int] = field(default_factory=set)
    """Leaders of the sessions of its engines."""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def prepare(self) -> None:
        """Config and key: before the first start."""
        text = TEXT.format(
            port=self.port,
            admin=self.admin,
            environment=ENGINE_ENVIRONMENT,
            version=self.version,
        )
        (self.folder / "inferd.toml").write_text(text)
        process = await self._inferd("keys", "create", "--team", "search", "--quiet")
        out, _ = await process.communicate()
        assert process.returncode == 0, "no key"
        self.key = out.decode().strip()

    async def start(self) -> None:
        """`inferd serve`, until it listens."""
        with (self.folder / "serve.log").open("ab") as log:
            self.process = await self._inferd("serve", output=log.fileno())
        async with asyncio.timeout(START_S_MAX), aiohttp.ClientSession() as http:
            while not await self._listens(http):
                assert self.process.returncode is None, self.log_end()
                await asyncio.sleep(LOOK_S)

    async def until_ready(self) -> None:
        """Until a worker takes requests."""
        async with asyncio.timeout(START_S_MAX), aiohttp.ClientSession() as http:
            while not any(  # noqa: ASYNC110 - another process
                one["state"] == "ready" for one in await self.workers(http)
            ):
                await asyncio.sleep(LOOK_S)

    async def kill(self) -> None:
        """SIGKILL to inferd alone."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def workers(self, http: aiohttp.ClientSession) -> list[dict[str, Any]]:
        key = (self.folder / "state" / "admin.key").read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        url = f"http://127.0.0.1:{self.admin}/admin/v1/status"
        async with http.get(url, headers=headers) as answer:
            status = await answer.json()
        found: list[dict[str, Any]] = [one for pool in status["pools"] for one in pool["workers"]]
        self.leaders |= {one["pid"] for one in found} - {None}
        return found

    def rows(self) -> list[UsageRow]:
        """The ledger of team `search` as it is on disk."""
        names = UsageRow.__dataclass_fields__
        path = self.folder / "state" / "inferd.db"
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            found = connection.execute(
                f"SELECT {', '.join(names)} FROM requests WHERE team = 'search'"  # noqa: S608
            ).fetchall()
        finally:
            connection.close()
        return [UsageRow(**dict(zip(names, row, strict=True))) for row in found]

    def log_end(self, chars: int = 4_000) -> str:
        return (self.folder / "serve.log").read_text(errors="replace")[-chars:]

    async def _listens(self, http: aiohttp.ClientSession) -> bool:
        try:
            async with http.get(f"http://127.0.0.1:{self.port}/healthz") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

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


def attached(url: str) -> str:
    """The version's lines for an engine that somebody else runs."""
    return f'attached = [{{ url = "{url}", inflight_max = 16 }}]'


def real_version() -> str:
    return REAL.format(weights=DEMO_MODEL)


@asynccontextmanager
async def batch_node(folder: Path, version: str) -> AsyncIterator[BatchNode]:
    """A prepared node, not started. Whatever it and its restarts have left is killed at the end."""
    node = BatchNode(folder, version)
    await node.prepare()
    try:
        yield node
    finally:
        if node.process is not None and node.process.returncode is None:
            await _end(node.process)
        for leader in node.leaders:
            for pid in session_of(leader):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


async def _end(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(15):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def tool_lines(count: int) -> list[dict[str, Any]]:
    """Requests that call tools, as people wrote them."""
    path = REPOSITORY / "tests" / "data" / "bfcl_200.jsonl"
    with path.open() as file:
        return [json.loads(line) for line, _ in zip(file, range(count), strict=False)]
