"""What a large file costs: memory, time for others, time and CPU, beside a plain write.

An `inferd serve` without workers takes one file of 50,000 lines and 200 MB as a form without a
length, as the JavaScript SDK sends it, gives it back and checks it as a batch. Meanwhile another
connection asks for /healthz in a row: what it waits, without what anybody waited for a processor,
is a stall of the event loop. Exits with 1 if a budget is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.fakes.engines import free_port

INFERD = str(Path(sys.executable).parent / "inferd")
LINE = (
    b'{"custom_id":"%09d","method":"POST","url":"/v1/chat/completions","body":{"model":"chat",'
    b'"messages":[{"role":"user","content":"%b"}]}}\n'
)
LINE_BYTES = 4_194
TEXT = b"x" * (LINE_BYTES - len(LINE % (0, b"")))
LINES = 50_000
LINES_AT_ONCE = 1_000
PIECE = 262_144
MEGABYTE = 1_048_576
LOOK_S = 0.05
START_S_MAX = 60.0
"""Until the asker asks."""
_SPAWNING = multiprocessing.get_context("spawn")
BUDGET_MEMORY_MB = 64.0
BUDGET_STALL_MS = 20.0
BUDGET_VALIDATION_S = 10.0
CONFIG = """
[server]
listen = "127.0.0.1:{public}"
admin_listen = "127.0.0.1:{admin}"
state_dir = "state"

[files]
store = "files"

[[models]]
name = "chat"
default_version = "1"
context_tokens_max = 4_096
output_tokens_max = 256

[[models.versions]]
version = "1"
attached = [{{ url = "http://127.0.0.1:9" }}]

[[teams]]
name = "bench"
"""


class Cost(NamedTuple):
    """Of one transfer of the whole file."""

    wall_s: float
    cpu_s: float
    memory_mb: float
    """The most the server held beyond what it held at rest."""
    stall_ms: float
    """What one of a thousand /healthz waited meanwhile."""
    stall_max_ms: float


def pieces(lines: int) -> Iterator[bytes]:
    """A batch of so many lines."""
    for begin in range(0, lines, LINES_AT_ONCE):
        numbers = range(begin, min(begin + LINES_AT_ONCE, lines))
        data = b"".join(LINE % (number, TEXT) for number in numbers)
        for at in range(0, len(data), PIECE):
            yield data[at : at + PIECE]


def form(lines: int) -> Iterator[bytes]:
    head = b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n'
    yield head % (b"file", b'; filename="bench.jsonl"')
    yield from pieces(lines)
    yield b"\r\n" + head % (b"purpose", b"") + b"batch\r\n--b--\r\n"


def ask_healthz(port: int, server: int, begun: Event, ended: Event, told: Connection) -> None:
    """In a process of its own: ask in a row until it is to end, then tell every wait in ms.

    What the asker or the server's loop waited for a processor is no stall of the loop.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port)
    threads = [Path("/proc/thread-self/schedstat"), Path(f"/proc/{server}/schedstat")]
    waits_ms = []
    while not ended.wait(0.001):
        before_s = sum(map(waited_s, threads))
        began = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        took_s = time.perf_counter() - began
        waits_ms.append((took_s - (sum(map(waited_s, threads)) - before_s)) * 1_000)
        begun.set()
    connection.close()
    told.send(sorted(waits_ms))


def waited_s(schedstat: Path) -> float:
    """How long a thread could have run and did not, the kernel says."""
    return int(schedstat.read_text().split()[1]) / 1e9


class Server:
    """A running inferd."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        text = CONFIG.format(public=self.port, admin=free_port())
        (folder / "inferd.toml").write_text(text)
        log = (folder / "log").open("wb")
        self.process = subprocess.Popen([INFERD, "serve"], cwd=folder, stdout=log, stderr=log)
        while not self._answers():
            assert self.process.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LOOK_S)
        command = [INFERD, "keys", "create", "--team", "bench", "--json"]
        told = subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout
        self.headers = {"Authorization": f"Bearer {json.loads(told)['secret']}"}

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def meanwhile(self, transfer: Callable[[], object]) -> tuple[list[float], float]:
        """How long /healthz took, sorted, and how long the transfer did in seconds."""
        begun, ended = _SPAWNING.Event(), _SPAWNING.Event()
        heard, told = _SPAWNING.Pipe(duplex=False)
        asker = _SPAWNING.Process(
            target=ask_healthz, args=(self.port, self.process.pid, begun, ended, told)
        )
        asker.start()
        assert begun.wait(START_S_MAX), "nobody asks"
        began = time.perf_counter()
        try:
            transfer()
        finally:
            wall_s = time.perf_counter() - began
            ended.set()
            waits_ms = heard.recv()
            asker.join()
        return waits_ms, wall_s

    def cost(self, transfer: Callable[[], object]) -> Cost:
        process = Path(f"/proc/{self.process.pid}")
        (process / "clear_refs").write_text("5")  # the peak begins anew
        before_mb, before_s = self._held_mb("VmRSS"), self._cpu_s()
        waits_ms, wall_s = self.meanwhile(transfer)
        return Cost(
            wall_s=wall_s,
            cpu_s=self._cpu_s() - before_s,
            memory_mb=self._held_mb("VmHWM") - before_mb,
            stall_ms=tail(waits_ms),
            stall_max_ms=waits_ms[-1],
        )

    def upload(self, lines: int) -> str:
        kind = {"Content-Type": "multipart/form-data; boundary=b"}
        answer = self._ask("POST", "/v1/files", form(lines), kind)
        assert answer.get("bytes") == lines * LINE_BYTES, answer
        return str(answer["id"])

    def download(self, file_id: str, lines: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", f"/v1/files/{file_id}/content", headers=self.headers)
        answer = connection.getresponse()
        left = lines * LINE_BYTES
        while data := answer.read(PIECE):
            left -= len(data)
        connection.close()
        assert not left, f"{left} bytes are missing"

    def validate(self, file_id: str, lines: int) -> None:
        """A batch is made of the file, and its lines begin."""
        asked = {
            "input_file_id": file_id,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        kind = {"Content-Type": "application/json"}
        batch = self._ask("POST", "/v1/batches", json.dumps(asked).encode(), kind)
        while batch.get("status") == "validating":
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LOOK_S)
            batch = self._ask("GET", f"/v1/batches/{batch['id']}")
        assert batch.get("status") == "in_progress", batch
        assert batch["request_counts"]["total"] == lines, batch

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(
            method,
            path,
            body,
            {**self.headers, **headers},
            encode_chunked=not isinstance(body, bytes | None),
        )
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def _held_mb(self, name: str) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1_024
        raise AssertionError(name)

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tail(waits_ms: list[float]) -> float:
    """What one of a thousand waited, of sorted waits."""
    return waits_ms[int(len(waits_ms) * 0.999)]


def plain_write_s(folder: Path, lines: int) -> float:
    """The same bytes into a file, and onto the disk."""
    began = time.perf_counter()
    with (folder / "plain").open("wb") as plain:
        for data in pieces(lines):
            plain.write(data)
        plain.flush()
        os.fsync(plain.fileno())
    return time.perf_counter() - began


def measure(folder: Path, lines: int) -> tuple[dict[str, Cost], float]:
    plain_s = plain_write_s(folder, lines)
    server = Server(folder)
    try:
        ids: list[str] = []
        server.upload(LINES_AT_ONCE)  # what is made once and kept is no part of a file's cost
        up = server.cost(lambda: ids.append(server.upload(lines)))
        down = server.cost(lambda: server.download(ids[0], lines))
        check = server.cost(lambda: server.validate(ids[0], lines))
    finally:
        server.process.terminate()
        server.process.wait()
    return {"upload": up, "download": down, "validate": check}, plain_s


def broken(costs: dict[str, Cost]) -> list[str]:
    found = []
    for name, cost in costs.items():
        if cost.memory_mb > BUDGET_MEMORY_MB:
            found.append(f"{name}: {cost.memory_mb:.0f} MB of memory, above {BUDGET_MEMORY_MB:.0f}")
        if cost.stall_ms > BUDGET_STALL_MS:
            found.append(f"{name}: stalls of {cost.stall_ms:.0f} ms, above {BUDGET_STALL_MS:.0f}")
    if (took_s := costs["validate"].wall_s) > BUDGET_VALIDATION_S:
        found.append(f"validate: {took_s:.1f} s, above {BUDGET_VALIDATION_S:.0f}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="figures for a program")
    parser.add_argument("--lines", type=int, default=LINES, help=f"each of {LINE_BYTES} bytes")
    arguments = parser.parse_args()
    megabytes = arguments.lines * LINE_BYTES / MEGABYTE
    with tempfile.TemporaryDirectory() as folder:
        costs, plain_s = measure(Path(folder), arguments.lines)
    if arguments.json:
        told = {name: cost._asdict() for name, cost in costs.items()}
        size = {"lines": arguments.lines, "megabytes": megabytes}
        print(json.dumps({**size, "plain_write_s": plain_s, **told}))
    else:
        print(
            f"{arguments.lines:,} lines, {megabytes:.0f} MB; a plain write of them takes"
            f" {plain_s:.2f} s"
        )
        for name, cost in costs.items():
            print(
                f"{name:9} {cost.wall_s:6.2f} s ({cost.wall_s / plain_s:.1f} x plain),"
                f" {cost.cpu_s:5.2f} s of CPU, {cost.memory_mb:5.1f} MB more memory,"
                f" stalls {cost.stall_ms:.1f} ms (most {cost.stall_max_ms:.1f})"
            )
    for complaint in broken(costs):
        print(f"over budget: {complaint}", file=sys.stderr)
    sys.exit(bool(broken(costs)))


if __name__ == "__main__":
    main()
