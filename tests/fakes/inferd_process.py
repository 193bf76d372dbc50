"""The `inferd` command as a user has it: processes in a folder with an inferd.toml.

Owns every process it starts: they are gone when the context that started them is left.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.engines import REPOSITORY, free_port
from tests.fakes.installed_engine import install_fake_engine, make_model

TEXT = """
[server]
listen = "127.0.0.1:{port}"
admin_listen = "127.0.0.1:{admin_port}"
state_dir = "state"
{server}

[engine]
environment = "engine"

[[models]]
name = "chat"
default_version = "1"
context_tokens_max = 4_096
output_tokens_max = 256

[[models.versions]]
version = "1"
{version}

[[teams]]
name = "search"
tokens_per_s = 1_000
burst_tokens = 100_000
"""
COMMAND = (sys.executable, "-m", "inferd")
_AGAIN_S = 2.0
_ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[=>])")


@dataclass(frozen=True, slots=True)
class Finished:
    code: int
    out: str
    err: str


class Folder:
    """A folder to run `inferd` in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = free_port()

    @property
    def config(self) -> Path:
        return self.path / "inferd.toml"

    @property
    def state(self) -> Path:
        return self.path / "state"

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def write(self, version: str, *, server: str = "") -> None:
        """An inferd.toml whose only version has these lines."""
        self.config.write_text(
            TEXT.format(port=self.port, admin_port=free_port(), version=version, server=server)
        )

    def attach(self, url: str) -> None:
        """Serve from a worker that the test runs."""
        self.write(f'attached = [{{ url = "{url}" }}]')

    def spawn(self, *engine_arguments: str, speed: float = 20.0, workers: str = "") -> None:
        """Serve from a worker that inferd starts: a fake engine with these further flags."""
        install_fake_engine(self.path / "engine", speed=speed)
        make_model(self.path / "model")
        quoted = ", ".join(f"'''{argument}'''" for argument in engine_arguments)
        engine = f'device = "cpu", extra_args = [{quoted}]'
        workers = f"\nworkers = {{ {workers} }}" if workers else ""
        self.write(f'weights = "model"\nengine = {{ {engine} }}{workers}')

    async def run(
        self, *arguments: str, stdin: str | None = None, env: dict[str, str] | None = None
    ) -> Finished:
        """Run one command to its end."""
        async with self.started(*arguments, env=env, stdin=stdin is not None) as process:
            out, err = await process.communicate(None if stdin is None else stdin.encode())
            assert process.returncode is not None
            return Finished(process.returncode, out.decode(), err.decode())

    async def key(self) -> str:
        """A key of team `search`, in `first.key` too."""
        done = await self.run("keys", "ensure", "--team", "search", "--file", "first.key")
        assert done.code == 0, done.err
        return (self.path / "first.key").read_text().strip()

    @asynccontextmanager
    async def started(
        self, *arguments: str, env: dict[str, str] | None = None, stdin: bool = False
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """A command with pipes, running until the scope is left."""
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *arguments,
            cwd=self.path,
            env=self._environment(env),
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=1_048_576,
        )
        try:
            yield process
        finally:
            await _end(process)

    @asynccontextmanager
    async def serving(self, *arguments: str) -> AsyncIterator[Serving]:
        """`inferd serve` with pipes, from when it listens."""
        async with self.started("serve", *arguments) as process:
            serving = Serving(process)
            await serving.until("inferd listens at")
            yield serving

    @asynccontextmanager
    async def in_terminal(
        self, *arguments: str, env: dict[str, str] | None = None
    ) -> AsyncIterator[Terminal]:
        """A command whose input, output and errors are a terminal."""
        master, slave = os.openpty()
        try:
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                *arguments,
                cwd=self.path,
                env=self._environment({"TERM": "xterm", "COLUMNS": "120", **(env or {})}),
                stdin=slave,
                stdout=slave,
                stderr=slave,
            )
        finally:
            os.close(slave)
        terminal = Terminal(process, master)
        try:
            yield terminal
        finally:
            await _end(process)
            terminal.close()

    @staticmethod
    def _environment(env: dict[str, str] | None) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if name != "INFERD_API_KEY"}
        return {**own, "PYTHONPATH": str(REPOSITORY), **(env or {})}


class Serving:
    """A running server, and what it has said on standard output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said = ""

    async def until(self, text: str) -> str:
        """Read until a line has this text in it; that line."""
        assert self.process.stdout is not None
        while line := (await self.process.stdout.readline()).decode():
            self.said += line
            if text in line:
                return line
        assert self.process.stderr is not None
        errors = (await self.process.stderr.read()).decode()
        raise AssertionError(f"inferd ended without {text!r}:\n{self.said}\n{errors}")

    async def stop(self) -> Finished:
        """SIGTERM, then the rest of what it says."""
        self.process.send_signal(signal.SIGTERM)
        out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return Finished(self.process.returncode, self.said + out.decode(), err.decode())


class Terminal:
    """The person's side of a terminal in which a command runs."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.process = process
        self.raw = ""
        self._master = master
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(master, self._read)

    @property
    def text(self) -> str:
        """All that was shown, without the terminal's control codes."""
        return _ESCAPE.sub("", self.raw)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    async def interrupt_until(self, text: str, *, after: int = 0) -> int:
        """Ctrl-C at a prompt, and again as a person would: readline misses one that comes after it
        has shown the prompt and before it waits for input."""
        while True:
            self.interrupt()
            try:
                async with asyncio.timeout(_AGAIN_S):
                    return await self.until(text, after=after)
            except TimeoutError:
                continue

    async def until(self, text: str, *, after: int = 0) -> int:
        """Until this was shown, past the position `after`; the position behind it."""
        while (at := self.text.find(text, after)) < 0:
            assert self._master >= 0, f"the terminal closed without {text!r}:\n{self.text}"
            self._news.clear()
            await self._news.wait()
        return at + len(text)

    async def end(self) -> int:
        """The exit code, once the command has ended by itself."""
        return await self.process.wait()

    def close(self) -> None:
        if self._master >= 0:
            asyncio.get_running_loop().remove_reader(self._master)
            os.close(self._master)
            self._master = -1

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # the last one on the other side has left
            data = b""
        self.raw += data.decode(errors="replace")
        if not data:
            self.close()
        self._news.set()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let a server stop its workers; kill what does not end."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(15):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
