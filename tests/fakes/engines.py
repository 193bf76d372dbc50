"""Engines for tests: the fake one as a process, the real one through the engine's environment.

`launch_*` start a process and return at once; `fake_engine` and `real_engine` are async context
managers that wait until it answers, give a `RunningEngine`, and kill its whole group at the end.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

REPOSITORY = Path(__file__).resolve().parents[2]
ENGINE_ENVIRONMENT = REPOSITORY / ".inferd" / "engine"
DEMO_MODEL = REPOSITORY / ".inferd" / "models" / "SmolLM2-135M-Instruct"
FAKE_COMMAND = [sys.executable, str(REPOSITORY / "tests" / "fake_engine" / "__main__.py")]
STANDARD_FLAGS = [
    *("--max-total-tokens", "16384", "--context-length", "4096"),
    *("--max-running-requests", "16", "--max-queued-requests", "64"),
    *("--chunked-prefill-size", "512", "--enable-metrics", "--enable-cache-report"),
    *("--enable-priority-scheduling", "--default-priority-value", "0"),
    *("--load-snapshot-publish-interval", "1", "--tool-call-parser", "qwen25"),
]
CPU_FLAGS = [
    *("--device", "cpu", "--attention-backend", "torch_native", "--sleep-on-idle"),
    *("--skip-server-warmup", "--constrained-json-disable-any-whitespace"),
]
DUMMY_FLAGS = [
    *("--load-format", "dummy"),
    *("--json-model-override-args", '{"num_hidden_layers":2}'),
]
FAKE_START_S = 30.0
REAL_START_S = 180.0
_POLL_S = 0.02
_REAL_POLL_S = 0.25
_END_S = 10.0
_LOG_SHOWN = 4_000


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        assert isinstance(port, int)
        return port


def fake_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a process needs to run `python -m tests.fake_engine` from any folder."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **(extra or {})}


@dataclass(frozen=True, slots=True)
class FakeEnvironment:
    """Stands in for the engine's environment where the gateway's supervisor takes one.

    `flags` go before the supervisor's own: the fake's (`--speed`, `--fault`), not the engine's.
    """

    flags: tuple[str, ...] = ()

    def command(self) -> list[str]:
        return [*FAKE_COMMAND, *self.flags]

    def env(self, extra: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, **extra}


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A started engine, ready or not. `kind` is fake or real."""

    kind: str
    port: int
    model: str
    log: Path
    process: subprocess.Popen[bytes]
    api_key: str | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def log_end(self) -> str:
        return self.log.read_text(errors="replace")[-_LOG_SHOWN:]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the engine's own process, not to its group."""
        self.process.send_signal(number)

    def ready(self) -> bool:
        """Whether /ready says 200; raises AssertionError with the log's end if it exited."""
        if self.exit_code is not None:
            raise AssertionError(f"the engine exited {self.exit_code}:\n{self.log_end()}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def wait_ready(self) -> None:
        """Block until ready. Raises AssertionError if it exits or takes too long."""
        fake = self.kind == "fake"
        limit = FAKE_START_S if fake else REAL_START_S
        deadline = time.monotonic() + limit
        while not self.ready():
            if time.monotonic() > deadline:
                raise AssertionError(f"not ready after {limit} s:\n{self.log_end()}")
            # Also ends when the process does, and then `ready` says why.
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_POLL_S if fake else _REAL_POLL_S)

    def end(self) -> None:
        """Kill the whole group: an engine's children included."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(_END_S)


def _launch(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            start_new_session=True,
        )


def launch_fake(
    folder: Path,
    *arguments: str,
    model: str = "fake-model",
    speed: float = 20.0,
    api_key: str | None = None,
    faults: Sequence[Mapping[str, Any]] = (),
    standard: bool = True,
) -> EngineProcess:
    """Start a fake engine. `arguments` come last, so that they win over the standard flags."""
    port = free_port()
    command = [*FAKE_COMMAND, "--port", str(port), "--served-model-name", model]
    command += [*(STANDARD_FLAGS if standard else []), "--speed", str(speed)]
    command += ["--api-key", api_key] if api_key else []
    for fault in faults:
        command += ["--fault", orjson.dumps(dict(fault)).decode()]
    log = folder / f"fake-engine-{port}.log"
    process = _launch([*command, *arguments], os.environ, log)
    return EngineProcess("fake", port, model, log, process, api_key)


def launch_real(
    folder: Path,
    *arguments: str,
    model: str = "smollm2-135m",
    api_key: str | None = None,
    dummy: bool = True,
) -> EngineProcess:
    """Start the real engine on the CPU; `dummy` has two layers of random weights, so noise.

    Raises AssertionError if it is not installed: it is a part of the full run, never skipped.
    """
    from inferd.provision.environment import EngineEnvironment  # noqa: PLC0415

    environment = EngineEnvironment(ENGINE_ENVIRONMENT)
    problems = environment.problems()
    if problems or not (DEMO_MODEL / "model.safetensors").exists():
        raise AssertionError(f"the engine is not installed, run scripts/test: {problems}")
    port = free_port()
    command = [*environment.command(), "--model-path", str(DEMO_MODEL), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--served-model-name", model, *STANDARD_FLAGS, *CPU_FLAGS]
    command += [*(DUMMY_FLAGS if dummy else []), *(["--api-key", api_key] if api_key else [])]
    log = folder / f"real-engine-{port}.log"
    process = _launch([*command, *arguments], environment.env({}), log)
    return EngineProcess("real", port, model, log, process, api_key)


@contextmanager
def standing(process: EngineProcess) -> Iterator[EngineProcess]:
    """For synchronous fixtures: wait until ready, end it afterwards."""
    try:
        process.wait_ready()
        yield process
    finally:
        process.end()


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine process and an HTTP session to it, on the running loop."""

    process: EngineProcess
    http: aiohttp.ClientSession

    @property
    def kind(self) -> str:
        return self.process.kind

    @property
    def port(self) -> int:
        return self.process.port

    @property
    def model(self) -> str:
        return self.process.model

    @property
    def base_url(self) -> str:
        return self.process.base_url

    @property
    def api_key(self) -> str | None:
        return self.process.api_key

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        self.process.signal(number)

    async def fault(self, kind: str, **parameters: Any) -> None:
        """Arm a fault of the fake (see tests/fake_engine/faults.py); `clear` removes all."""
        url, body = f"{self.base_url}/fake/fault", {"kind": kind, **parameters}
        async with self.http.post(url, json=body) as answer:
            assert answer.status == 200, await answer.text()

    async def stats(self) -> dict[str, Any]:
        """What the fake saw and did: running, waiting, aborted, disconnected, requests, tokens."""
        async with self.http.get(f"{self.base_url}/fake/stats") as answer:
            value = await answer.json()
        assert isinstance(value, dict)
        return value

    async def until(self, **expected: Any) -> dict[str, Any]:
        """Wait until the fake's stats show these values (callables are predicates)."""
        async with asyncio.timeout(FAKE_START_S):
            while True:
                stats = await self.stats()
                if all(
                    want(stats[name]) if callable(want) else stats[name] == want
                    for name, want in expected.items()
                ):
                    return stats
                await asyncio.sleep(_POLL_S)

    async def exited(self, timeout_s: float = _END_S) -> int:
        """Wait for the process to end by itself; its exit code. Raises TimeoutExpired."""
        return await asyncio.to_thread(self.process.process.wait, timeout_s)


@asynccontextmanager
async def connected(process: EngineProcess) -> AsyncIterator[RunningEngine]:
    """An HTTP session to a process that someone else ends."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=process.headers) as session:
        yield RunningEngine(process, session)


@asynccontextmanager
async def _running(process: EngineProcess, *, wait: bool) -> AsyncIterator[RunningEngine]:
    try:
        async with connected(process) as engine:
            if wait:
                await asyncio.to_thread(process.wait_ready)
            yield engine
    finally:
        process.end()


@asynccontextmanager
async def fake_engine(
    folder: Path,
    *arguments: str,
    model: str = "fake-model",
    speed: float = 20.0,
    api_key: str | None = None,
    faults: Sequence[Mapping[str, Any]] = (),
    standard: bool = True,
    wait: bool = True,
) -> AsyncIterator[RunningEngine]:
    """A fake engine on a free port, ready unless `wait` is False."""
    process = launch_fake(
        folder,
        *arguments,
        model=model,
        speed=speed,
        api_key=api_key,
        faults=faults,
        standard=standard,
    )
    async with _running(process, wait=wait) as engine:
        yield engine


@asynccontextmanager
async def real_engine(
    folder: Path,
    *arguments: str,
    model: str = "smollm2-135m",
    api_key: str | None = None,
    dummy: bool = True,
) -> AsyncIterator[RunningEngine]:
    """The real engine on the CPU, ready (about 20 s). Mark the test `engine` and `slow`."""
    process = launch_real(folder, *arguments, model=model, api_key=api_key, dummy=dummy)
    async with _running(process, wait=True) as engine:
        yield engine
