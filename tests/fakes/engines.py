"""Engines for tests: the fake one as a process, the real one through the engine's environment.

Both give a `RunningEngine`. The process is gone when the context is left, whatever happened.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

REPOSITORY = Path(__file__).resolve().parents[2]
FAKE_COMMAND = [sys.executable, "-m", "tests.fake_engine"]
STANDARD_FLAGS = [
    *("--max-total-tokens", "16384", "--context-length", "4096"),
    *("--max-running-requests", "16", "--max-queued-requests", "64"),
    *("--chunked-prefill-size", "512", "--enable-metrics", "--enable-cache-report"),
    *("--enable-priority-scheduling", "--default-priority-value", "0"),
    *("--load-snapshot-publish-interval", "1", "--tool-call-parser", "qwen25"),
]
START_TIMEOUT_S = 30.0
_POLL_S = 0.02
_STOP_TIMEOUT_S = 10.0


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        assert isinstance(port, int)
        return port


def fake_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a process needs to run FAKE_COMMAND from any folder."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **(extra or {})}


@dataclass(slots=True)
class RunningEngine:
    """One engine process that answers on `base_url`."""

    base_url: str
    port: int
    process: asyncio.subprocess.Process
    http: aiohttp.ClientSession
    log: Path
    model: str
    kind: str
    api_key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def fault(self, kind: str, **parameters: Any) -> None:
        """Arm a fault of the fake; `clear` removes all."""
        async with self.http.post(
            f"{self.base_url}/fake/fault", json={"kind": kind, **parameters}
        ) as answer:
            assert answer.status == 200, await answer.text()

    async def stats(self) -> dict[str, Any]:
        """What the fake saw and did: running, waiting, aborted, disconnected, requests, tokens."""
        async with self.http.get(f"{self.base_url}/fake/stats") as answer:
            value = await answer.json()
        assert isinstance(value, dict)
        return value

    async def until(self, **expected: Any) -> dict[str, Any]:
        """Wait until the fake's stats show these values (callables are predicates)."""
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                stats = await self.stats()
                if all(
                    want(stats[name]) if callable(want) else stats[name] == want
                    for name, want in expected.items()
                ):
                    return stats
                await asyncio.sleep(_POLL_S)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the engine's own process."""
        self.process.send_signal(number)


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url, timeout=aiohttp.ClientTimeout(total=2)) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def wait_ready(engine: RunningEngine, timeout_s: float) -> None:
    """Until /ready says 200. Raises AssertionError with the log's end if the process ended."""
    async with asyncio.timeout(timeout_s):
        while not await _answers(engine.http, f"{engine.base_url}/ready"):
            if engine.process.returncode is not None:
                tail = engine.log.read_text(errors="replace")[-4_000:]
                raise AssertionError(f"the engine exited {engine.process.returncode}:\n{tail}")
            await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def running(
    command: list[str],
    *,
    kind: str,
    port: int,
    model: str,
    log: Path,
    environment: Mapping[str, str],
    api_key: str | None = None,
    ready_timeout_s: float | None = START_TIMEOUT_S,
) -> AsyncIterator[RunningEngine]:
    """Run an engine process in its own group; with no `ready_timeout_s`, do not wait for it."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=output, stderr=output, env=dict(environment), start_new_session=True
        )
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    connector = aiohttp.TCPConnector(limit=0)
    try:
        async with aiohttp.ClientSession(connector=connector, headers=headers) as http:
            engine = RunningEngine(
                f"http://127.0.0.1:{port}", port, process, http, log, model, kind, api_key, headers
            )
            if ready_timeout_s is not None:
                await wait_ready(engine, ready_timeout_s)
            yield engine
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the whole group: an engine's children included."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    async with asyncio.timeout(_STOP_TIMEOUT_S):
        await process.wait()


@asynccontextmanager
async def fake_engine(
    tmp_path: Path,
    *arguments: str,
    model: str = "fake-model",
    speed: float = 20.0,
    api_key: str | None = None,
    faults: list[dict[str, Any]] | None = None,
    wait: bool = True,
    standard: bool = True,
) -> AsyncIterator[RunningEngine]:
    """A fake engine on a free port. `arguments` come last, so that they win over the standard."""
    port = free_port()
    command = [*FAKE_COMMAND, "--port", str(port), "--served-model-name", model]
    command += [*(STANDARD_FLAGS if standard else []), "--speed", str(speed)]
    command += ["--api-key", api_key] if api_key else []
    for fault in faults or []:
        command += ["--fault", orjson.dumps(fault).decode()]
    async with running(
        [*command, *arguments],
        kind="fake",
        port=port,
        model=model,
        log=tmp_path / f"fake-engine-{port}.log",
        environment=fake_environment(),
        api_key=api_key,
        ready_timeout_s=START_TIMEOUT_S if wait else None,
    ) as engine:
        yield engine
