"""What a start costs: `inferd --help`, and `inferd serve` until it listens.

Processes are started in turn, beside a bare python and one that imports a web server, and every
line is a ratio to both within this run. The worker is a fake one that already runs, so the engine's
own start is no part of it. Exits with 1 if a start takes more CPU than its budget.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.fakes.engines import free_port, launch_fake, standing

INFERD = str(Path(sys.executable).parent / "inferd")
BARE = "python -c pass"
IMPORTS = 'python -c "import aiohttp.web"'
HELP = "inferd --help"
SERVE = "inferd serve, until it listens"
BUDGETS_MS = {HELP: 250.0, SERVE: 1_000.0}
CONFIG = """
[server]
listen = "127.0.0.1:{public}"
admin_listen = "127.0.0.1:{admin}"
state_dir = "state"

[[models]]
name = "chat"
default_version = "1"
context_tokens_max = 4_096
output_tokens_max = 256

[[models.versions]]
version = "1"
attached = [{{ url = "{url}" }}]

[[teams]]
name = "search"
"""


class Cost(NamedTuple):
    """Of one start, in milliseconds. CPU is of all threads, in user and system mode."""

    wall_ms: float
    cpu_ms: float


def to_the_end(*command: str) -> Cost:
    """Of a command that ends by itself."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(wall_s * 1e3, (used.ru_utime + used.ru_stime) * 1e3)


def until_it_listens(folder: Path) -> Cost:
    """Of `inferd serve` with the file in `folder`; it is stopped then."""
    began = time.perf_counter()
    with subprocess.Popen(
        [INFERD, "serve"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "listens at" in line:
                cost = Cost((time.perf_counter() - began) * 1e3, _cpu_ms(process.pid))
                break
        else:
            raise RuntimeError("inferd serve ended before it listened")
        process.terminate()
        process.stdout.read()
    return cost


def _cpu_ms(pid: int) -> float:
    """What a running process has used."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


def measure(folder: Path, runs: int) -> dict[str, Cost]:
    """Medians, the cases taken in turn."""
    cases: dict[str, Callable[[], Cost]] = {
        BARE: lambda: to_the_end(sys.executable, "-c", "pass"),
        IMPORTS: lambda: to_the_end(sys.executable, "-c", "import aiohttp.web"),
        HELP: lambda: to_the_end(INFERD, "--help"),
        SERVE: lambda: until_it_listens(folder),
    }
    seen: dict[str, list[Cost]] = {name: [] for name in cases}
    with standing(launch_fake(folder, model="chat")) as engine:
        text = CONFIG.format(public=free_port(), admin=free_port(), url=engine.base_url)
        (folder / "inferd.toml").write_text(text)
        for round_number in range(-1, runs):
            for name, case in cases.items():
                cost = case()
                if round_number >= 0:  # the first round fills the caches
                    seen[name].append(cost)
    return {
        name: Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))
        for name, costs in seen.items()
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=11)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        medians = measure(Path(folder), chosen.runs)
    if chosen.json:
        told = {name: cost._asdict() for name, cost in medians.items()}
        sys.stdout.write(json.dumps({"benchmark": "startup", "medians": told}) + "\n")
    else:
        sys.stdout.write(f"{'':<38} {'wall':>8} {'CPU':>8}   x bare  x imports   (CPU)\n")
        for name, cost in medians.items():
            bare, imports = (cost.cpu_ms / medians[unit].cpu_ms for unit in (BARE, IMPORTS))
            sys.stdout.write(
                f"{name:<38} {cost.wall_ms:5.0f} ms {cost.cpu_ms:5.0f} ms"
                f" {bare:8.1f} {imports:10.1f}\n"
            )
    over = [name for name, budget in BUDGETS_MS.items() if medians[name].cpu_ms > budget]
    for name in over:
        sys.stderr.write(
            f"over budget: {name} took {medians[name].cpu_ms:.0f} ms of CPU, more than"
            f" {BUDGETS_MS[name]:.0f} ms\n"
        )
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
