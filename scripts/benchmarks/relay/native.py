"""The native upstream and load client: compiled from `native/`, run, and read.

A client prints a line of counts every 250 ms; what is read of the contender's CPU then belongs to
the events counted so far, so that a cost per event can be taken from the middle of a run.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

HOST: Final = "127.0.0.1"
MODEL: Final = "bench"
SOURCES: Final = Path(__file__).parent / "native"


def build(folder: Path) -> None:
    """Compile both programs into `folder`.

    Raises:
        RuntimeError: there is no C compiler, or it refuses them.
    """
    for name in ("upstream", "client"):
        source, program = str(SOURCES / f"{name}.c"), str(folder / name)
        command = ["cc", "-O2", "-o", program, source, "-lm"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise RuntimeError("needs a C compiler (on Debian: apt-get install gcc)") from error
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{name}.c does not compile:\n{error.stderr}") from error


@contextmanager
def upstream(
    folder: Path,
    port: int,
    events_per_s: float,
    first_event_ms: float = 0.0,
    *,
    model: str = MODEL,
    padding_bytes: int = 0,
) -> Iterator[int]:
    """A worker at `port` while the scope lasts, its pid; 0 events a second: as fast as it can."""
    numbers = [str(port), str(events_per_s), str(first_event_ms)]
    command = [str(folder / "upstream"), *numbers, model, str(padding_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.terminate()


@dataclass(frozen=True, slots=True)
class Load:
    """What a client does. `rate` 0: as many requests as connections, each after the last."""

    connections: int
    tokens: int
    seconds: float
    rate: float = 0.0
    body_bytes: int = 3_000
    stream: bool = True
    model: str = MODEL

    def arguments(self) -> list[str]:
        """Of the client, behind its port and key."""
        how = "stream" if self.stream else "whole"
        numbers = (self.connections, self.tokens, self.seconds, self.rate, self.body_bytes)
        return [self.model, *map(str, numbers), how]


@dataclass(frozen=True, slots=True)
class Sample:
    """At one moment: what the client had counted, and the process's CPU seconds and bytes."""

    events: int
    requests: int
    open: int
    cpu_s: float
    rss_bytes: int


@dataclass(slots=True)
class Seen:
    """One client's run."""

    samples: list[Sample] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)


def run_client(
    folder: Path, port: int, key: str, load: Load, look: Callable[[], tuple[float, int]]
) -> Seen:
    """Play `load` against `port`. `look` tells the contender's CPU seconds and resident bytes.

    Raises:
        RuntimeError: the client ended without a result.
    """
    seen = Seen()
    command = [str(folder / "client"), str(port), key, *load.arguments()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                seen.result = json.loads(line)
            else:
                events, requests, still_open = map(int, line.split())
                cpu_s, rss_bytes = look()
                seen.samples.append(Sample(events, requests, still_open, cpu_s, rss_bytes))
    if not seen.result:
        raise RuntimeError(f"the client ended with {process.returncode}")
    return seen


def used_by(pids: Callable[[], list[int]]) -> Callable[[], tuple[float, int]]:
    """CPU seconds and resident bytes of processes, by the kernel's own accounts."""
    tick = os.sysconf("SC_CLK_TCK")
    page = os.sysconf("SC_PAGE_SIZE")

    def look() -> tuple[float, int]:
        cpu_s, rss = 0.0, 0
        for pid in pids():
            try:
                tasks = list(Path(f"/proc/{pid}/task").iterdir())
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                exact = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
            except (FileNotFoundError, ProcessLookupError):
                continue
            ended = (int(fields[11]) + int(fields[12])) / tick
            # Threads that have ended are only in the coarse account.
            cpu_s += max(exact / 1e9, ended)
            rss += int(fields[21]) * page
        return cpu_s, rss

    return look


def family(root: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(text.split()[0]))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found
