"""The inferd under load: in front of attached native workers, with all of its features on."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from scripts.benchmarks.relay.native import HOST, used_by
from scripts.benchmarks.scale.pause import pause
from scripts.soaks.verdict import claims
from tests.fakes.engines import free_port

PROGRAM: Final = str(Path(sys.executable).parent / "inferd")
START_S_MAX: Final = 60.0
REST_S_MAX: Final = 30.0
END_S_MAX: Final = 30.0
LOOK_S: Final = 0.1
DESCRIPTORS_WANTED: Final = 12_000
SERVER: Final = """
[server]
listen = "127.0.0.1:{port}"
admin_listen = "127.0.0.1:{admin}"
state_dir = "state"
unready_s = 0
shutdown_grace_s = 2
stall_s = {stall_s}

[[teams]]
name = "bench"
tokens_per_s = 100_000_000
burst_tokens = 1_000_000_000_000
"""
MODEL: Final = """
[[models]]
name = "{name}"
default_version = "1"
context_tokens_max = 131_072
output_tokens_max = 65_536
targets = {{ ttft_ms = 60_000, tpot_ms = 60_000 }}
queue = {{ waiting_max = 10_000, waiting_per_team_max = 10_000 }}

[[models.versions]]
version = "1"
attached = [{attached}]
"""


class TooFewDescriptorsError(Exception):
    """The system does not let a process open as many files as a part needs."""


def allow_descriptors() -> None:
    """Let this process and its children open as many files as the system lets them.

    Raises:
        TooFewDescriptorsError: those are too few.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < DESCRIPTORS_WANTED:
        raise TooFewDescriptorsError(
            f"a process may open {hard} files here, and {DESCRIPTORS_WANTED} are needed:"
            " raise the hard limit (ulimit -Hn)"
        )


@dataclass(frozen=True, slots=True)
class Gateway:
    """An inferd that answers."""

    folder: Path
    port: int
    admin: int
    key: str
    pid: int
    asked: int = 0
    """Requests that were sent to find out whether it answers; each has its row."""

    def used(self) -> tuple[float, int]:
        """CPU seconds and resident bytes."""
        return used_by(lambda: [self.pid])()

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def held(self) -> list[str]:
        """What is still claimed, until nothing is or `REST_S_MAX` are over."""
        until = time.monotonic() + REST_S_MAX
        while (found := claims(self._status())) and time.monotonic() < until:
            pause(LOOK_S)
        return found

    def rows(self) -> list[dict[str, Any]]:
        """The ledger as it is on disk."""
        place = f"file:{self.folder / 'state' / 'inferd.db'}?mode=ro"
        with closing(sqlite3.connect(place, uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            found = connection.execute("SELECT request_id, outcome FROM requests")
            return [dict(row) for row in found]

    def _status(self) -> dict[str, Any]:
        secret = (self.folder / "state" / "admin.key").read_text().strip()
        with closing(http.client.HTTPConnection(HOST, self.admin, timeout=10)) as connection:
            headers = {"Authorization": f"Bearer {secret}"}
            connection.request("GET", "/admin/v1/status", headers=headers)
            status: dict[str, Any] = json.loads(connection.getresponse().read())
            return status


@contextmanager
def gateway(
    folder: Path, pools: Mapping[str, Sequence[int]], *, stall_s: float = 30.0
) -> Iterator[Gateway]:
    """An `inferd serve` in an empty folder whose models are served at these ports.

    Raises:
        RuntimeError: it does not start; its last words.
    """
    port, admin = free_port(), free_port()
    text = SERVER.format(port=port, admin=admin, stall_s=stall_s)
    for name, ports in pools.items():
        workers = (f'{{ url = "http://{HOST}:{at}", inflight_max = 65_536 }}' for at in ports)
        text += MODEL.format(name=name, attached=", ".join(workers))
    (folder / "inferd.toml").write_text(text)
    command = [PROGRAM, "keys", "create", "--team", "bench", "--quiet"]
    key = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    with (
        (folder / "serve.log").open("wb") as output,
        subprocess.Popen([PROGRAM, "serve"], cwd=folder, stdout=output, stderr=output) as process,
    ):
        one = Gateway(folder, port, admin, key.strip(), process.pid)
        try:
            asked = sum(_wait_until_it_answers(one, process, name) for name in pools)
            yield replace(one, asked=asked)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_it_answers(one: Gateway, process: subprocess.Popen[bytes], model: str) -> int:
    """How often it was asked; without a ready worker it refuses."""
    until, asked = time.monotonic() + START_S_MAX, 0
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError, http.client.HTTPException):
            status = ask(one, chat(model, tokens=1))
            asked += 1
            if status == http.HTTPStatus.OK:
                return asked
        pause(LOOK_S)
    tail = (one.folder / "serve.log").read_text(errors="replace")[-600:]
    raise RuntimeError(f"inferd does not answer for {model}; its last words:\n{tail}")


def chat(model: str, *, tokens: int, stream: bool = False) -> dict[str, Any]:
    """The body of a small request."""
    messages = [{"role": "user", "content": "Go."}]
    return {"model": model, "messages": messages, "max_tokens": tokens, "stream": stream}


def ask(one: Gateway, body: dict[str, Any], key: str | None = None) -> int:
    """The status of a whole answer."""
    with closing(http.client.HTTPConnection(HOST, one.port, timeout=10)) as connection:
        headers = {
            "Authorization": f"Bearer {key or one.key}",
            "Content-Type": "application/json",
        }
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
