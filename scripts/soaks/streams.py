"""Ten minutes of all kinds of clients at once, and whether anything grows.

Native clients stream, ask for whole answers and send bodies of 400 KB at steady rates; others leave
at random, hardly read, or ask for what is refused. Exits with 1 if memory or open files grow over
the second half, if anything is claimed in the end, if a request has no row or several, or if one
failed that should not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import uvloop

from inferd.clock import monotonic
from scripts.benchmarks.relay import native
from scripts.benchmarks.relay.native import Load
from scripts.benchmarks.scale.gateway import Gateway, allow_descriptors, chat, gateway
from scripts.benchmarks.scale.load import AS_MANY_AS_COME, Client, client, worker
from scripts.benchmarks.scale.slow_readers import TURN_S, slow_readers
from scripts.soaks.trend import second_half, slope

MODEL: Final = "chat"
WIDE: Final = "wide"
"""Its events have 4 KB, so that a reader that hardly reads is soon full."""
PACE: Final = 25.0
PADDING_BYTES: Final = 4_000
STALL_S: Final = 5.0
LOADS: Final = {
    "streams": (10.0, Load(500, 100, 0, model=MODEL)),
    "whole": (10.0, Load(100, 8, 0, stream=False, model=MODEL)),
    "bodies of 400 KB": (1.0, Load(20, 8, 0, body_bytes=400_000, stream=False, model=MODEL)),
}
"""Each begun so often a second."""
LEAVERS_PER_S: Final = 4.0
LEAVE_S: Final = (0.05, 3.0)
SLOW_EVERY_S: Final = 2.0
REFUSED_PER_S: Final = 2.0
REFUSALS: Final = {
    "key": 401,
    "model": 404,
    "parameter": 400,
}
LOOK_S: Final = 2.0
GROWTH_MAX_BYTES: Final = 8_000_000
"""In as much time as the whole run takes, by the line through its second half."""
FILES_GROWTH_MAX: Final = 20.0
TELL_S: Final = 30.0


@dataclass
class Report:
    """What one run came to."""

    seconds: float
    begun: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, float]] = field(default_factory=list)
    files: list[tuple[float, float]] = field(default_factory=list)
    cpu_s: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "seconds": self.seconds,
            "begun": dict(self.begun),
            "rows": dict(self.rows),
            "memory": self.memory,
            "files": self.files,
            "cpu_s": self.cpu_s,
            "growth_bytes": self.growth_bytes,
            "growth_files": self.growth_files,
            "wrong": self.wrong,
            "passed": not self.wrong,
        }

    @property
    def growth_bytes(self) -> float:
        """Of resident memory, by the second half, in as much time as the whole run takes."""
        return slope(second_half(self.memory)) * self.seconds

    @property
    def growth_files(self) -> float:
        return slope(second_half(self.files)) * self.seconds


class Soak:
    """One run against one gateway."""

    def __init__(
        self, one: Gateway, seconds: float, seed: int, http: aiohttp.ClientSession
    ) -> None:
        self._gateway = one
        self._http = http
        self._chance = random.Random(seed)
        self.report = Report(seconds)
        self._over_at = 0.0

    async def run(self, clients: dict[str, Client]) -> None:
        """All of it, until everything has ended."""
        report = self.report
        began = monotonic()
        self._over_at = began + report.seconds
        cpu_s = self._gateway.used()[0]
        for name, one in clients.items():
            one.open(AS_MANY_AS_COME)
            one.rate(LOADS[name][0])
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(began))
            group.create_task(self._often(LEAVERS_PER_S, self._leave))
            group.create_task(self._often(REFUSED_PER_S, self._be_refused))
            group.create_task(self._read_slowly())
        for name, one in clients.items():
            told = await asyncio.to_thread(one.end)
            report.begun[name] = told["requests"]
            if failed := told["errors"] + told["incomplete"] + told["late"]:
                report.wrong.append(f"{name}: {failed} failed or could not be begun: {told}")
        report.cpu_s = self._gateway.used()[0] - cpu_s
        held = await asyncio.to_thread(self._gateway.held)
        report.wrong += [f"still claimed: {account}" for account in held]

    def judge(self) -> None:
        """Look at the ledger and at what has grown. The gateway has ended: all rows are written."""
        report = self.report
        rows = self._gateway.rows()
        report.rows.update(str(row["outcome"]) for row in rows)
        expected = sum(n for name, n in report.begun.items() if not name.startswith("refused"))
        if len(rows) != expected:
            report.wrong.append(f"{len(rows)} rows of {expected} requests")
        if len({row["request_id"] for row in rows}) != len(rows):
            report.wrong.append("a request has several rows")
        if report.growth_bytes > GROWTH_MAX_BYTES:
            report.wrong.append(f"memory grows by {report.growth_bytes / 1e6:.1f} MB a run")
        if report.growth_files > FILES_GROWTH_MAX:
            report.wrong.append(f"open files grow by {report.growth_files:.0f} a run")

    async def _watch(self, began: float) -> None:
        told_at = began
        while (now := monotonic()) < self._over_at:
            self.report.memory.append((now - began, float(self._gateway.used()[1])))
            self.report.files.append((now - began, float(self._gateway.descriptors())))
            if now - told_at >= TELL_S:
                told_at = now
                megabytes = self.report.memory[-1][1] / 1e6
                print(
                    f"{now - began:6.0f} s: {megabytes:.0f} MB,"
                    f" {self.report.files[-1][1]:.0f} open files",
                    file=sys.stderr,
                    flush=True,
                )
            await asyncio.sleep(LOOK_S)

    async def _often(self, per_s: float, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin `act` at random moments, so often a second on average, until the time is over."""
        async with asyncio.TaskGroup() as group:
            while monotonic() < self._over_at:
                group.create_task(act())
                await asyncio.sleep(self._chance.expovariate(per_s))

    async def _leave(self) -> None:
        """Ask for a long stream and close the connection somewhere in it."""
        self.report.begun["leave"] += 1
        leave_at = monotonic() + self._chance.uniform(*LEAVE_S)
        async with self._ask(chat(MODEL, tokens=1_000, stream=True)) as answer:
            try:
                async with asyncio.timeout_at(leave_at):
                    await answer.read()
            except TimeoutError:
                answer.close()

    async def _be_refused(self) -> None:
        what = self._chance.choice(list(REFUSALS))
        self.report.begun[f"refused for its {what}"] += 1
        body = chat("nowhere" if what == "model" else MODEL, tokens=1)
        body |= {"temperature": "hot"} if what == "parameter" else {}
        async with self._ask(body, "sk-nobody" if what == "key" else None) as answer:
            await answer.read()
            if answer.status != REFUSALS[what]:
                self.report.wrong.append(f"refused for its {what}, with {answer.status}")

    def _ask(self, body: dict[str, Any], key: str | None = None) -> Any:  # noqa: ANN401 (a context manager of aiohttp's own)
        one = self._gateway
        headers = {"Authorization": f"Bearer {key or one.key}"}
        url = f"http://127.0.0.1:{one.port}/v1/chat/completions"
        return self._http.post(url, json=body, headers=headers)

    async def _read_slowly(self) -> None:
        """One more who hardly reads every other second; each is cut off or leaves in the end."""
        one, body = self._gateway, chat(WIDE, tokens=20_000, stream=True)
        next_at = monotonic()
        with slow_readers() as readers:
            while (now := monotonic()) < self._over_at:
                if now >= next_at:
                    next_at += SLOW_EVERY_S
                    readers.begin(one.port, one.key, body)
                    self.report.begun["hardly read"] += 1
                readers.turn()
                await asyncio.sleep(TURN_S)


async def run(folder: Path, seconds: float, seed: int) -> Report:
    """One run in an empty folder."""
    allow_descriptors()
    native.build(folder)
    home = folder / "inferd"
    home.mkdir()
    with ExitStack() as workers:
        plain = workers.enter_context(worker(folder, MODEL, PACE))
        wide = workers.enter_context(worker(folder, WIDE, PACE, PADDING_BYTES))
        pools = {MODEL: [plain.port], WIDE: [wide.port]}
        with ExitStack() as stack:
            one = stack.enter_context(gateway(home, pools, stall_s=STALL_S))
            clients = {
                name: stack.enter_context(client(folder, one.port, one.key, load))
                for name, (_, load) in LOADS.items()
            }
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as http:
                soak = Soak(one, seconds, seed, http)
                soak.report.begun["first"] = one.asked
                await soak.run(clients)
        soak.judge()
    return soak.report


def say(report: Report) -> None:
    """The report for people."""
    begun = ", ".join(f"{n:,} {name}" for name, n in report.begun.items())
    rows = ", ".join(f"{n:,} {name}" for name, n in report.rows.items())
    memory = [bytes_ / 1e6 for _, bytes_ in report.memory]
    files = [count for _, count in report.files]
    later = [bytes_ / 1e6 for _, bytes_ in second_half(report.memory)]
    print(f"{report.seconds:.0f} s: {begun}")
    print(f"rows: {rows}")
    print(
        f"memory: {memory[0]:.0f} MB at first, {min(later):.0f} to {max(later):.0f} MB in the"
        f" second half, growing by {report.growth_bytes / 1e6:+.1f} MB in as long as the run"
    )
    print(
        f"open files: {files[0]:.0f} at first, {max(files):.0f} at most, growing by"
        f" {report.growth_files:+.1f}; {report.cpu_s / report.seconds:.2f} of a core"
    )
    for line in report.wrong[:40]:
        print(f"  {line}")
    print("FAILED" if report.wrong else "passed")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/soak streams", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the report")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        report = uvloop.run(run(Path(temporary), asked.minutes * 60, asked.seed))
    say(report)
    if asked.json:
        asked.json.write_text(json.dumps(report.told(), indent=1) + "\n")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
