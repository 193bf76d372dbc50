"""Native workers and clients that are told what to do while they run, and what they saw.

Owns its processes: they end with the scope. A count of events never starts anew; times are those
since the last report.
"""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts.benchmarks.relay import native
from scripts.benchmarks.relay.native import HOST, Load, used_by
from tests.fakes.engines import free_port

AS_MANY_AS_COME: Final = -1


@dataclass(slots=True)
class Worker:
    """A native worker. `sent` and `open` are of the last time it was asked."""

    port: int
    pid: int
    sent: int = 0
    open: int = 0

    def look(self) -> None:
        self._ask("")

    def pace(self, events_per_s: float) -> None:
        """Of every stream, from its next event on."""
        self._ask(f"?pace={events_per_s}")

    def end(self, streams: int) -> None:
        """So many streams end properly, each with its next event."""
        self._ask(f"?end={streams}")

    def cpu_s(self) -> float:
        return used_by(lambda: [self.pid])()[0]

    def _ask(self, query: str) -> None:
        with closing(http.client.HTTPConnection(HOST, self.port, timeout=20)) as connection:
            connection.request("GET", f"/bench{query}")
            told = json.loads(connection.getresponse().read())
        self.sent, self.open = told["sent"], told["open"]


@contextmanager
def worker(
    folder: Path, model: str, events_per_s: float, padding_bytes: int = 0
) -> Iterator[Worker]:
    """A native worker that serves `model`."""
    port = free_port()
    started = native.upstream(folder, port, events_per_s, model=model, padding_bytes=padding_bytes)
    with started as pid:
        yield Worker(port, pid)


class Client:
    """A native client that opens, or begins at a rate, what it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def open(self, requests: int) -> None:
        """Keep so many open; `AS_MANY_AS_COME`: what the rate brings."""
        self._say(f"open {requests}")

    def rate(self, requests_per_s: float) -> None:
        """Begin so many a second, while fewer are open than are to be."""
        self._say(f"rate {requests_per_s}")

    def report(self) -> dict[str, Any]:
        """Counts since the start; times since the last report."""
        self._say("report")
        return self._next_report()

    def end(self) -> dict[str, Any]:
        """Begin nothing more and wait for what is open: counts of the whole run."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._next_report()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _next_report(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                told: dict[str, Any] = json.loads(line)
                return told
        raise RuntimeError(f"the client ended with {self._process.wait()}")


@contextmanager
def client(folder: Path, port: int, key: str, load: Load) -> Iterator[Client]:
    """A client that does nothing yet; `load` says what its requests are, and how many at most."""
    command = [str(folder / "client"), str(port), key, *load.arguments(), "steered"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Client(process)
        finally:
            process.terminate()
