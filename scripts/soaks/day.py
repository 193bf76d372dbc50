"""A compressed day: many real clients as teams, random disconnects and failures, every token found.

Draws a day's requests from ServeGen's clients and plays them in minutes. Then holds against each
other what clients were told, the ledger, the engines' own counts and `/metrics`, to the token, and
the money against sums worked out anew. Exits with 1 on any difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import uvloop

from inferd.capacity.servegen import servegen
from inferd.clock import monotonic
from scripts.soaks.chaos_faults import Faults
from scripts.soaks.chaos_node import chaos_node
from scripts.soaks.day_accounts import (
    Accounts,
    Tokens,
    add,
    compare,
    compare_engines,
    compare_metrics,
    costs_shown,
    tokens_of,
)
from scripts.soaks.day_clients import SMALLER, DayClients
from scripts.soaks.day_money import PICO, owed_by_team
from scripts.soaks.day_node import MODELS, DayNode
from scripts.soaks.verdict import at_rest
from tests.fakes.engines import REPOSITORY
from tests.fakes.served import session_of

RATES: Final = REPOSITORY / "tests" / "data" / "traces" / "servegen_rates.csv.gz"
DAY_S: Final = 86_400.0
MOST_SHOWN: Final = 12
MONEY_SHARE: Final = Fraction(1, 10**9)
"""`/metrics` sums money in floats: so much of it may be lost."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run is made of."""

    requests: int = 20_000
    seconds: float = 780.0
    seed: int = 1
    every_s: float = 10.0
    speed: float = 10.0
    first: str = ""
    """The fault to begin with; any unless given."""


@dataclass
class Money:
    """By team, as four tell it."""

    ledger: dict[str, Fraction] = field(default_factory=dict)
    recomputed: dict[str, Fraction] = field(default_factory=dict)
    usage: dict[str, Fraction] = field(default_factory=dict)
    shown: dict[str, float] = field(default_factory=dict)

    def differences(self) -> list[str]:
        wrong = []
        for team in sorted({*self.ledger, *self.recomputed, *self.usage, *self.shown}):
            kept, anew = self.ledger.get(team, Fraction()), self.recomputed.get(team, Fraction())
            told = self.usage.get(team, Fraction())
            shown = Fraction(self.shown.get(team, 0.0))
            if not kept == anew == told or abs(shown - kept) > kept * MONEY_SHARE:
                wrong.append(
                    f"{team} owes {float(anew)}; ledger {float(kept)}, `inferd usage`"
                    f" {float(told)}, /metrics {float(shown)}"
                )
        return wrong

    def sums(self) -> dict[str, str]:
        exact = {"recomputed": self.recomputed, "ledger": self.ledger, "usage": self.usage}
        found = {
            name: f"{float(sum(by_team.values(), Fraction())):.12f}"
            for name, by_team in exact.items()
        }
        return found | {"metrics": f"{sum(self.shown.values()):.12f}"}


@dataclass
class Day:
    """One run."""

    plan: Plan
    node: DayNode
    clients: DayClients
    seconds: float = 0.0
    strikes: Counter[str] = field(default_factory=Counter)
    accounts: Accounts = field(default_factory=Accounts)
    metrics: Tokens = (0, 0, 0)
    money: Money = field(default_factory=Money)
    teams: dict[str, Tokens] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    async def run(self, *, quiet: bool) -> None:
        """The whole of it."""
        node, plan = self.node, self.plan
        await node.start(ready=sum(MODELS.values()))
        await node.make_keys()
        faults = Faults(node, random.Random(plan.seed), plan.every_s, False, plan.first)  # noqa: FBT003
        began = monotonic()
        async with asyncio.TaskGroup() as group:
            striking = group.create_task(faults.run())
            telling = None if quiet else group.create_task(self._tell(began))
            await self.clients.run()
            striking.cancel()
            if telling is not None:
                telling.cancel()
        self.seconds = monotonic() - began
        self.strikes.update(one.fault for one in faults.struck)
        await node.heal()
        held = await at_rest(node)
        self.wrong += [f"not at rest: {account}" for account in held]
        await self._look()
        code = await node.stop()
        self.wrong += [f"inferd ended with {code}"] if code else []
        left = [pid for leader in node.leaders for pid in session_of(leader)]
        self.wrong += [f"processes are left: {left}"] if left else []

    async def _look(self) -> None:
        """Take all accounts while engines still stand, and compare them."""
        node, out = self.node, self.clients.outcomes
        balance, _ = await node.command("reconcile", "--json")
        usage, _ = await node.command("usage", "--by", "team", "--json")
        shown = await node.metrics()
        status = await node.status()
        pids = {worker["worker"]: worker["pid"] for worker in node.workers_of(status)}
        rows, counted = node.rows(), node.counted()
        dead = {one["pid"] for one in counted.values()} - set(pids.values())
        self.accounts = compare(out, rows, node.unbilled(), counted, dead)
        self.metrics, differ = compare_metrics(shown, rows)
        engines = compare_engines(json.loads(balance), pids, rows, counted)
        self.wrong += self.accounts.wrong + differ + engines
        as_told = [asdict(row) for row in rows]
        money = self.money
        money.recomputed, off = owed_by_team(node.config.read_text(), as_told)
        for row in as_told:
            team = row["team"]
            cost = Fraction(row["cost_pico"], PICO)
            money.ledger[team] = money.ledger.get(team, Fraction()) + cost
            self.teams[team] = add(self.teams.get(team, (0, 0, 0)), tokens_of(row))
        money.usage = {one["team"]: Fraction(one["cost"]) for one in json.loads(usage)["groups"]}
        money.shown = costs_shown(shown)
        self.wrong += off + money.differences()

    async def _tell(self, began: float) -> None:
        while True:
            await asyncio.sleep(30)
            ended = len(self.clients.outcomes)
            print(
                f"{monotonic() - began:6.0f} s: {ended} of {self.plan.requests} requests ended,"
                f" {self.clients.open} open",
                flush=True,
            )

    def report(self) -> dict[str, Any]:
        """All of it as JSON."""
        errors = Counter(one.told for one in self.clients.outcomes if one.told)
        return {
            "plan": asdict(self.plan),
            "seconds": round(self.seconds, 1),
            "behind_s": round(self.clients.behind_s, 1),
            "teams": len(self.node.teams),
            "requests": len(self.clients.outcomes),
            "faults": dict(self.strikes),
            "errors": dict(errors.most_common()),
            "accounts": self.accounts.sums(),
            "metrics": self.metrics,
            "unbilled": self.accounts.unbilled,
            "estimated_unbilled": self.accounts.estimated_unbilled,
            "untold": self.accounts.untold,
            "untold_tokens": self.accounts.untold_tokens,
            "by_team": {
                team: {"tokens": tokens, "owed": float(self.money.recomputed[team])}
                for team, tokens in sorted(self.teams.items(), key=lambda one: -one[1][2])
            },
            "money": self.money.sums(),
            "wrong": self.wrong,
            "passed": not self.wrong,
        }


def say(report: dict[str, Any]) -> None:
    """The report for people."""
    print(
        f"\n{report['requests']:,} requests of {report['teams']} teams in {report['seconds']} s,"
        f" at most {report['behind_s']} s late; lengths divided by {SMALLER}"
    )
    for title in ("faults", "errors"):
        print(f"{title}: " + ", ".join(f"{name} {n}" for name, n in report[title].items()))
    print(f"\n{'':18}{'requests':>9}{'':10}{'prompt':>12}{'cached':>12}{'output':>12}")
    for kind, account in report["accounts"].items():
        count = f"{account['requests']:,}"
        for who in ("clients", "ledger", "engines"):
            prompt, cached, output = account[who]
            first = f"{kind:18}{count:>9}" if who == "clients" else " " * 27
            print(f"{first} {who:9}{prompt:12,}{cached:12,}{output:12,}")
    print(f"{'all':18}{'':9} /metrics {'':0}" + "".join(f"{n:12,}" for n in report["metrics"]))
    print(
        f"attempts nobody pays for: {report['unbilled']}, of them"
        f" {report['estimated_unbilled']} estimated; {report['untold']} prompts"
        f" ({report['untold_tokens']:,} tokens) read by silent engines before these were ended"
    )
    print("\nmoney: " + ", ".join(f"{name} {text}" for name, text in report["money"].items()))
    for team, of in list(report["by_team"].items())[:MOST_SHOWN]:
        prompt, cached, output = of["tokens"]
        print(f"  {team:14}{prompt:12,}{cached:12,}{output:12,}{of['owed']:16.9f}")
    if (more := len(report["by_team"]) - MOST_SHOWN) > 0:
        print(f"  and {more} more (--json FILE has them)")
    print(f"wrong: {len(report['wrong'])}")
    for line in report["wrong"][:40]:
        print(f"  {line}")
    print("passed" if report["passed"] else "FAILED")


async def run(plan: Plan, folder: Path, *, quiet: bool = False) -> Day:
    """One run in an empty folder."""
    stream = servegen(RATES, requests=plan.requests, span_s=DAY_S, seed=plan.seed)
    async with chaos_node(folder, real=False, workers=1, speed=plan.speed, kind=DayNode) as node:
        node.teams = tuple(sorted({one.team for one in stream.arrivals}))
        node.write_config()
        clients = DayClients(
            node,
            random.Random(plan.seed + 1),
            number=0,
            pause_s=0.0,
            arrivals=stream.arrivals,
            span_s=DAY_S,
            seconds=plan.seconds,
        )
        day = Day(plan, node, clients)
        await day.run(quiet=quiet)
        return day


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/soak day", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=13.0, help="what the day is pressed into")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between faults")
    parser.add_argument("--json", type=Path, help="where to write the report")
    parser.add_argument("--keep", type=Path, help="an empty folder to run in, and to keep")
    asked = parser.parse_args()
    plan = Plan(asked.requests, asked.minutes * 60, asked.seed, asked.every)
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        report = uvloop.run(run(plan, folder.resolve())).report()
    say(report)
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
