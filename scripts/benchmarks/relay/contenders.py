"""Who is measured: inferd, the splice, no gateway at all, and the peers, each in its environment.

A peer is installed on demand under `.inferd/bench`, pinned here; one that cannot be installed or
does not start is left out of the run, and the report says why.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.benchmarks.relay.native import HOST, MODEL, family
from tests.fakes.engines import free_port

REPOSITORY: Final = Path(__file__).resolve().parents[3]
HOME: Final = REPOSITORY / ".inferd" / "bench"
START_S_MAX: Final = 90.0
PORTKEY_VERSION: Final = "1.15.2"
PIP_PEERS: Final = {
    "sglang-router": "sglang-router==0.3.2",
    "vllm-router": "vllm-router==0.1.17",
    "litellm": "litellm[proxy]==1.89.7",
}
PEERS: Final = (*PIP_PEERS, "portkey")
INFERD: Final = "inferd"
SPLICE: Final = "splice"
DIRECT: Final = "direct"
CONFIG: Final = """
[server]
listen = "127.0.0.1:{port}"
admin_listen = "127.0.0.1:0"
state_dir = "state"
unready_s = 0

[[models]]
name = "{model}"
default_version = "1"
context_tokens_max = 131_072
output_tokens_max = 65_536
targets = {{ ttft_ms = 60_000, tpot_ms = 60_000 }}
queue = {{ waiting_max = 10_000, waiting_per_team_max = 10_000 }}

[[models.versions]]
version = "1"
attached = [{{ url = "http://127.0.0.1:{upstream}", inflight_max = 65_536 }}]

[[teams]]
name = "bench"
tokens_per_s = 100_000_000
burst_tokens = 1_000_000_000_000
"""


@dataclass(frozen=True, slots=True)
class Running:
    """A contender that answers. `key` may carry further header lines behind it."""

    name: str
    port: int
    key: str
    pid: int | None

    def pids(self) -> list[int]:
        return [] if self.pid is None else family(self.pid)


class UnavailableError(Exception):
    """A contender that cannot take part, and why."""


def install(name: str) -> Path:
    """The environment of a peer, made if it is not there.

    Raises:
        UnavailableError: it cannot be had.
    """
    folder = HOME / name
    done = folder / ".installed"
    if name == "portkey":
        wanted = f"@portkey-ai/gateway@{PORTKEY_VERSION}"
        npm = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(folder)]
        steps = [[*npm, wanted]]
    else:
        wanted = PIP_PEERS[name]
        steps = [
            [sys.executable, "-m", "venv", str(folder)],
            [str(folder / "bin" / "pip"), "install", "--quiet", wanted],
        ]
    if done.is_file() and done.read_text() == wanted:
        return folder
    sys.stderr.write(f"installing {wanted}\n")
    folder.mkdir(parents=True, exist_ok=True)
    for step in steps:
        try:
            ended = subprocess.run(step, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise UnavailableError(f"{step[0]} is not installed") from error
        if ended.returncode:
            raise UnavailableError(f"not installed: {ended.stderr.strip().splitlines()[-1:]}")
    done.write_text(wanted)
    return folder


@contextmanager
def running(name: str, folder: Path, port: int, upstream_port: int) -> Iterator[Running]:
    """One contender in front of the worker at `upstream_port`, until the scope ends.

    Raises:
        UnavailableError: it cannot be installed, or does not answer in time.
    """
    if name == DIRECT:
        yield Running(name, upstream_port, "none", None)
        return
    folder = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    key = "sk-bench"
    if name == INFERD:
        text = CONFIG.format(port=port, upstream=upstream_port, model=MODEL)
        (folder / "inferd.toml").write_text(text)
        key = _inferd_key(folder)
    command = _command(name, folder, port, upstream_port)
    with (
        (folder / "output.log").open("wb") as output,
        subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as process,
    ):
        if name == "portkey":
            host = f"http://{HOST}:{upstream_port}/v1"
            key += f"\r\nx-portkey-provider: openai\r\nx-portkey-custom-host: {host}"
        try:
            _wait_until_it_answers(process, port, key, folder)
            yield Running(name, port, key, process.pid)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
            return


def _command(name: str, folder: Path, port: int, upstream_port: int) -> Sequence[str]:
    if name == INFERD:
        return [str(Path(sys.executable).parent / "inferd"), "serve"]
    if name == SPLICE:
        program = [sys.executable, "-m", "scripts.benchmarks.relay.splice"]
        return ["env", f"PYTHONPATH={REPOSITORY}", *program, str(port), str(upstream_port)]
    home = install(name)
    if name == "portkey":
        node = shutil.which("node")
        if node is None:
            raise UnavailableError("node is not installed")
        server = home / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
        return [node, str(server), f"--port={port}", "--headless"]
    worker = f"http://{HOST}:{upstream_port}"
    program = [str(home / "bin" / name)]
    listen = f"--host {HOST} --port {port}".split()
    if name == "litellm":
        config = _litellm_config(folder, f"{worker}/v1")
        more = f"--config {config} --num_workers 1 --telemetry False"
    else:
        program += ["launch"] if name == "sglang-router" else []
        more = (
            f"--worker-urls {worker} --policy round_robin --max-concurrent-requests 65536"
            f" --log-level error --prometheus-port {free_port()}"
        )
    return [*program, *listen, *more.split()]


def _litellm_config(folder: Path, api_base: str) -> Path:
    how = {"model": f"openai/{MODEL}", "api_base": api_base, "api_key": "none"}
    path = folder / "litellm.json"
    path.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": how}]}))
    return path


def _inferd_key(folder: Path) -> str:
    shutil.rmtree(folder / "state", ignore_errors=True)
    program = str(Path(sys.executable).parent / "inferd")
    made = subprocess.run(
        [program, "keys", "create", "--team", "bench", "--name", "bench", "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise UnavailableError(made.stderr)
    return str(json.loads(made.stdout)["secret"])


def _wait_until_it_answers(
    process: subprocess.Popen[bytes], port: int, key: str, folder: Path
) -> None:
    key, *more = key.split("\r\n")
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    headers |= dict(line.split(": ", 1) for line in more)
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
    until = time.monotonic() + START_S_MAX
    while process.poll() is None and time.monotonic() < until:
        with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=5)) as connection:
            try:
                connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
                if connection.getresponse().status == http.HTTPStatus.OK:
                    return
            except (http.client.HTTPException, OSError):
                pass  # not there yet
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
    tail = (folder / "output.log").read_text(errors="replace")[-600:]
    raise UnavailableError(f"does not answer; its last words:\n{tail}")
