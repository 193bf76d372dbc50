"""`inferd serve` as a process of its own, as an operator runs it, on an engine that it starts.

`served` is one for a test alone. `standing_served` is for fixtures: it outlives a test's loop, and
each test that uses it opens its own session with `using`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from inferd.config.address import Address
from inferd.storage.usage import UsageRow
from tests.fakes.engines import DEMO_MODEL, ENGINE_ENVIRONMENT, REPOSITORY, free_port

MODEL = "smollm2-135m"
START_S = 180.0
COMMAND_S = 30.0
_LOOK_S = 0.1
_SOON_S = 0.02
TEMPLATE = """
[server]
listen = "127.0.0.1:{public}"
admin_listen = "127.0.0.1:{admin}"
state_dir = "state"
shutdown_grace_s = 30.0

[engine]
environment = "{environment}"

[[models]]
name = "smollm2-135m"
default_version = "1"
context_tokens_max = 4_096
output_tokens_max = 2_048

[models.targets]
ttft_ms = 60_000

[[models.versions]]
version = "1"
weights = "{weights}"

[models.versions.engine]
device = "cpu"
running_max = 16
queued_max = 64
kv_tokens_max = 16_384
chunked_prefill_tokens = 512
tool_call_parser = "qwen25"
extra_args = {extra_args}

[models.versions.workers]
drain_s = 10.0
restart_backoff_s = 0.5

[[teams]]
name = "demo"
"""
COUNTER = re.compile(r"^sglang:(\w+_tokens_total)\{.*\} ([0-9.e+]+)$", re.MULTILINE)
INFERD = [sys.executable, "-m", "inferd"]
DUMMY_ARGS = ["--load-format", "dummy", "--json-model-override-args", '{"num_hidden_layers":2}']
"""Two layers of random weights: four times faster, and the text is noise."""


@dataclass(slots=True)
class ServeProcess:
    """`inferd serve` in a folder, and how to reach it. No loop owns it."""

    folder: Path
    public: Address
    admin: Address
    key: str
    process: subprocess.Popen[bytes]

    def end(self) -> None:
        """In an orderly way; raises TimeoutExpired when that takes too long, and kills it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(START_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise


@dataclass(slots=True)
class Served:
    """A running `inferd serve` and what an operator has of it."""

    serving: ServeProcess
    http: aiohttp.ClientSession

    @property
    def folder(self) -> Path:
        return self.serving.folder

    @property
    def public(self) -> Address:
        return self.serving.public

    @property
    def key(self) -> str:
        return self.serving.key

    @property
    def base_url(self) -> str:
        return f"http://{self.public}/v1"

    @property
    def log(self) -> str:
        return (self.folder / "serve.log").read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.serving.process.send_signal(number)

    async def ended(self) -> int:
        """Its exit code. Raises TimeoutExpired."""
        return await asyncio.to_thread(self.serving.process.wait, START_S)

    async def killed_and_started_again(self) -> None:
        """`kill -9` of inferd alone, and the next one; it need not be ready yet."""
        self.signal(signal.SIGKILL)
        await self.ended()
        self.serving.process = _serve(self.folder)

    async def status(self) -> dict[str, Any]:
        """`inferd status --json`, without the command's start."""
        return await self.ask_admin("status")

    async def ask_admin(self, path: str) -> dict[str, Any]:
        """A GET of the admin API."""
        key = (self.folder / "state" / "admin.key").read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        url = f"http://{self.serving.admin}/admin/v1/{path}"
        async with self.http.get(url, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            body: dict[str, Any] = await answer.json()
            return body

    async def worker(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.status())["pools"][0]["workers"][0]
        return found

    async def until_ready(self, but_not: int | None = None) -> dict[str, Any]:
        """The worker, once it takes requests and is not the process `but_not`."""
        async with asyncio.timeout(START_S):
            while True:
                if (code := self.serving.process.poll()) is not None:
                    raise AssertionError(f"exit {code}:\n{self.log[-4_000:]}")
                try:
                    worker = await self.worker()
                except (aiohttp.ClientError, OSError):
                    worker = {"state": "not listening"}
                if worker["state"] == "ready" and worker["pid"] != but_not:
                    return worker
                await asyncio.sleep(_LOOK_S)

    async def until_listening(self) -> None:
        """Until its admin listener answers."""
        async with asyncio.timeout(START_S):
            while True:
                try:
                    await self.status()
                except (aiohttp.ClientError, OSError):
                    await asyncio.sleep(_SOON_S)
                else:
                    return

    async def at_rest(self) -> dict[str, Any]:
        """The status, once nothing is in flight, here or in the engine, or on its way to disk."""
        async with asyncio.timeout(COMMAND_S):
            while True:
                status = await self.status()
                worker = status["pools"][0]["workers"][0]
                if not (status["requests_in_flight"] or worker["engine_running"]):
                    await self.written()
                    return status
                await asyncio.sleep(_LOOK_S)

    async def written(self) -> None:
        """Every row of the ledger is on disk: `inferd reconcile` sees to that before it looks."""
        await self.ask_admin("reconcile")

    def rows(self) -> list[UsageRow]:
        """The ledger as it is on disk, oldest first; see `written`."""
        names = UsageRow.__dataclass_fields__
        path = self.folder / "state" / "inferd.db"
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            found = connection.execute(
                f"SELECT {', '.join(names)} FROM requests ORDER BY rowid"
            ).fetchall()
        finally:
            connection.close()
        return [UsageRow(**dict(zip(names, row, strict=True))) for row in found]


async def engine_tokens(inferd: Served) -> dict[str, float]:
    """The engine's own counters since it started."""
    url = (await inferd.worker())["url"]
    async with inferd.http.get(f"{url}/metrics") as answer:
        text = await answer.text()
    totals: dict[str, float] = {}
    for name, value in COUNTER.findall(text):
        totals[name] = totals.get(name, 0) + float(value)
    return totals


async def command(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run `inferd ARGUMENTS` in `folder`; its exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *INFERD,
        *arguments,
        cwd=folder,
        env=_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(COMMAND_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@contextmanager
def standing_served(
    folder: Path,
    *,
    dummy: bool = True,
    sections: str = "",
    edit: Callable[[str], str] = str,
) -> Iterator[ServeProcess]:
    """Write a config, make a key, serve; it need not be ready yet. Ended in an orderly way.

    `sections` are further tables of its version; `edit` has the last word on the config.
    """
    public, admin = Address("127.0.0.1", free_port()), Address("127.0.0.1", free_port())
    text = TEMPLATE.format(
        public=public.port,
        admin=admin.port,
        environment=ENGINE_ENVIRONMENT,
        weights=DEMO_MODEL,
        extra_args=orjson.dumps(DUMMY_ARGS if dummy else []).decode(),
    )
    text = text.replace("[[teams]]", sections + "\n[[teams]]")
    (folder / "inferd.toml").write_text(edit(text))
    arguments = [*INFERD, "keys", "create", "--team", "demo", "--quiet"]
    made = subprocess.run(
        arguments, cwd=folder, env=_environment(), capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    serving = ServeProcess(folder, public, admin, made.stdout.strip(), _serve(folder))
    try:
        yield serving
    finally:
        serving.end()


@asynccontextmanager
async def using(serving: ServeProcess) -> AsyncIterator[Served]:
    """An operator of it, on the running loop, once its worker takes requests."""
    async with aiohttp.ClientSession() as http:
        running = Served(serving, http)
        await running.until_ready()
        yield running


@asynccontextmanager
async def served(
    folder: Path,
    *,
    dummy: bool = True,
    sections: str = "",
    edit: Callable[[str], str] = str,
) -> AsyncIterator[Served]:
    """One for a test alone, ready."""
    with standing_served(folder, dummy=dummy, sections=sections, edit=edit) as serving:
        async with using(serving) as running:
            yield running


def _serve(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "serve.log").open("ab") as log:
        return subprocess.Popen(
            [*INFERD, "serve"],
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def session_of(pid: int) -> list[int]:
    """Every process of the session that `pid` leads, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}
