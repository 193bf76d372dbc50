"""Constant load, random faults, and an account of every request.

Clients of three teams ask one inferd with several workers while those are killed, stopped, hung
and restarted, the configuration is reloaded, clients leave, and inferd itself is killed. Exits with
1 if one request ended in anything but a whole answer or an honest error, if an account is not zero
at the end, or if the ledger differs from what clients counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from inferd.clock import monotonic
from scripts.soaks.chaos_clients import KINDS, Clients
from scripts.soaks.chaos_faults import Faults
from scripts.soaks.chaos_node import ChaosNode, chaos_node
from scripts.soaks.timeline import Seen, Timeline
from scripts.soaks.verdict import Verdict, at_rest, judge
from tests.fakes.served import session_of

LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run is made of."""

    seconds: float
    seed: int = 1
    clients: int = 6
    pause_s: float = 0.5
    every_s: float = 8.0
    workers: int = 3
    speed: float = 4.0
    real: bool = False
    kills_inferd: bool = True
    first: str = ""
    """The fault to begin with; any unless given."""


@dataclass
class Chaos:
    """One run."""

    plan: Plan
    node: ChaosNode
    seen: list[Seen] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    decisions: dict[str, int] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)

    def __post_init__(self) -> None:
        plan = self.plan
        chance = random.Random(plan.seed)
        self.clients = Clients(self.node, chance, plan.clients, plan.pause_s)
        kills = plan.kills_inferd
        self.faults = Faults(self.node, chance, plan.every_s, kills, plan.first)

    async def run(self, *, quiet: bool = False) -> Verdict:
        """The whole run; the verdict, which `passed` or not."""
        await self.node.start(ready=self.plan.workers)
        self.began = monotonic()
        over_at = self.began + self.plan.seconds
        async with asyncio.TaskGroup() as group:
            clients = group.create_task(self.clients.run())
            faults = group.create_task(self.faults.run())
            watching = group.create_task(self._watch())
            while (left_s := over_at - monotonic()) > 0:
                await asyncio.sleep(min(left_s, 30.0))
                if not quiet:
                    self._tell()
            await self._stopped(faults)
            self.clients.over = True
            await clients
            await self._healed()
            held = await at_rest(self.node)
            watching.cancel()
        self.ended = monotonic()
        await self._count_decisions()
        code = await self.node.stop()
        clients_, killed = self.clients.outcomes, self.node.killed_at
        self.verdict = judge(clients_, self.node.rows(), killed)
        wrong = self.verdict.wrong
        wrong += [f"not at rest: {account}" for account in held]
        wrong += [
            f"a worker was left behind by a restart: {pid}" for pid in self.faults.left_behind
        ]
        wrong += [f"inferd ended with {code}"] if code else []
        left = [pid for leader in self.node.leaders for pid in session_of(leader)]
        wrong += [f"processes are left: {left}"] if left else []
        return self.verdict

    async def _stopped(self, faults: asyncio.Task[None]) -> None:
        """No more faults; a restart of inferd that is under way is let through."""
        while len(self.node.up_at) <= len(self.node.killed_at):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        faults.cancel()
        with suppress(asyncio.CancelledError):
            await faults

    async def _healed(self) -> None:
        """Until a worker serves again: what is armed on one dies with it, sooner or later."""
        async with asyncio.timeout(120):
            while not self.node.ready(await self.node.status()):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)

    async def _watch(self) -> None:
        """Write down each change of a worker's state, and what the watchdog has decided."""
        last: dict[str, str] = {}
        while True:
            status = await self.node.status()
            for worker in self.node.workers_of(status):
                name, state = worker["worker"], worker["state"]
                if last.get(name) != state:
                    last[name] = state
                    self.seen.append(Seen(monotonic(), name, state))
            there = {worker["worker"] for worker in self.node.workers_of(status)}
            for name in set(last) - there if status else ():
                del last[name]
                self.seen.append(Seen(monotonic(), name, "stopped"))
            await asyncio.sleep(LOOK_S)

    async def _count_decisions(self) -> None:
        """From the log: counters start at zero with each inferd."""
        log = (self.node.folder / "serve.log").read_text(errors="replace")
        for name in re.findall(r'"decision":"(\w+)"', log):
            self.decisions[name] = self.decisions.get(name, 0) + 1

    def _tell(self) -> None:
        ended = len(self.clients.outcomes)
        took_s = monotonic() - self.began
        last = self.faults.struck[-1] if self.faults.struck else None
        what = f"; last fault: {last.fault} ({last.what})" if last else ""
        print(
            f"{took_s:6.0f} s: {ended} requests ended, {self.clients.open} open{what}", flush=True
        )

    def report(self) -> dict[str, Any]:
        """All of it as JSON."""
        strikes: dict[str, int] = {}
        for one in self.faults.struck:
            strikes[one.fault] = strikes.get(one.fault, 0) + 1
        errors: dict[str, int] = {}
        for outcome in self.clients.outcomes:
            if outcome.kind in {"error", "broken"}:
                errors[outcome.told] = errors.get(outcome.told, 0) + 1
        kills = [one.what for one in self.faults.struck if one.fault == "kill inferd"]
        return {
            "plan": asdict(self.plan),
            "seconds": round(self.ended - self.began, 1),
            "requests": dict(self.verdict.counts),
            "errors": errors,
            "faults": strikes,
            "watchdog": self.decisions,
            "inferd_killed": kills,
            "absent_rows": self.verdict.absent,
            "wrong": self.verdict.wrong,
            "passed": self.verdict.passed,
        }

    def picture(self) -> str:
        plan = self.plan
        engine = "the real engine on a CPU" if plan.real else "fake engines"
        title = (
            f"{(self.ended - self.began) / 60:.0f} minutes, {plan.workers} workers ({engine}),"
            f" {len(self.faults.struck)} faults, {len(self.clients.outcomes)} requests"
        )
        struck = self.faults.struck
        return Timeline(self.began, self.ended).draw(
            title, self.clients.outcomes, self.seen, struck
        )


def say(report: dict[str, Any]) -> None:
    """The report for people."""
    total = sum(report["requests"].values())
    print(f"\n{total} requests in {report['seconds']} s, {sum(report['faults'].values())} faults")
    for kind, told in KINDS.items():
        print(f"  {report['requests'].get(kind, 0):6}  {kind:9} {told}")
    for title in ("errors", "faults", "watchdog"):
        counts = sorted(report[title].items(), key=lambda item: -item[1])
        print(f"{title}: " + ", ".join(f"{name} {count}" for name, count in counts))
    for title in ("inferd_killed", "absent_rows", "wrong"):
        print(f"{title.replace('_', ' ')}: {len(report[title])}")
        for line in report[title][:40]:
            print(f"  {line}")
    print("passed" if report["passed"] else "FAILED")


async def run(plan: Plan, folder: Path, *, quiet: bool = False) -> Chaos:
    """One run in an empty folder."""
    async with chaos_node(
        folder, real=plan.real, workers=plan.workers, speed=plan.speed, kind=ChaosNode
    ) as node:
        chaos = Chaos(plan, node)
        await chaos.run(quiet=quiet)
        return chaos


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/soak chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--real", action="store_true", help="the real engine on the CPU")
    parser.add_argument("--workers", type=int, help="3, or 1 real one")
    parser.add_argument("--clients", type=int, help="at a time: 6, or 4 with the real engine")
    parser.add_argument("--every", type=float, help="seconds between faults: 8, or 45")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spare-inferd", action="store_true", help="never kill inferd itself")
    parser.add_argument("--svg", type=Path, help="where to draw the run")
    parser.add_argument("--json", type=Path, help="where to write the report")
    parser.add_argument("--keep", type=Path, help="an empty folder to run in, and to keep")
    asked = parser.parse_args()
    plan = Plan(
        seconds=asked.minutes * 60,
        seed=asked.seed,
        clients=asked.clients or (4 if asked.real else 6),
        every_s=asked.every or (45.0 if asked.real else 8.0),
        workers=asked.workers or (1 if asked.real else 3),
        real=asked.real,
        kills_inferd=not asked.spare_inferd,
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        chaos = uvloop.run(run(plan, folder.resolve()))
        report = chaos.report()
    say(report)
    if asked.svg:
        asked.svg.write_text(chaos.picture())
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
