"""What must hold after a chaos run: every end honest, every account zero, the ledger right."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from inferd.clock import monotonic
from inferd.storage.usage import UsageRow
from scripts.soaks.chaos_clients import BROKEN, COMPLETE, ERROR, GONE, LEFT, Outcome
from scripts.soaks.chaos_node import ChaosNode

REST_S_MAX: Final = 60.0
LAST_FLUSH_S: Final = 1.0
"""A row that was due this shortly before a SIGKILL may be lost: the last flush, and what a client
that left was still to be billed."""


@dataclass
class Verdict:
    """Counts, what a killed inferd took with it, and what must not be."""

    counts: Counter[str] = field(default_factory=Counter)
    absent: list[str] = field(default_factory=list)
    """Requests in flight, or just ended, when inferd was killed: they have no row."""
    wrong: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.wrong


def judge(outcomes: list[Outcome], rows: list[UsageRow], killed_at: list[float]) -> Verdict:
    """Each client's word against the ledger."""
    verdict = Verdict()
    by_id = Counter(row.request_id for row in rows)
    verdict.wrong += [f"{name} is billed {n} times" for name, n in by_id.items() if n > 1]
    ledger = {row.request_id: row for row in rows}
    for outcome in outcomes:
        verdict.counts[outcome.kind] += 1
        if outcome.kind == BROKEN:
            verdict.wrong.append(_told(outcome, "neither an answer nor an honest error"))
        if outcome.request_id is None:
            continue
        row = ledger.get(outcome.request_id)
        if row is None:
            _no_row(verdict, outcome, killed_at)
        elif problem := _compare(outcome, row):
            verdict.wrong.append(_told(outcome, problem))
    return verdict


def _no_row(verdict: Verdict, outcome: Outcome, killed_at: list[float]) -> None:
    first, last = outcome.began, outcome.ended + LAST_FLUSH_S
    kill = next((at for at in killed_at if first <= at <= last), None)
    if kill is not None:
        before_s = kill - outcome.ended
        when = "in flight" if before_s < 0 else f"ended {before_s * 1e3:.0f} ms before"
        verdict.absent.append(_told(outcome, f"no row: {when} when inferd was killed"))
    elif outcome.kind in {COMPLETE, LEFT} or (outcome.kind == ERROR and outcome.seen):
        verdict.wrong.append(_told(outcome, "no row, and inferd was not killed"))


def _compare(outcome: Outcome, row: UsageRow) -> str:
    if row.team != outcome.team:
        return f"billed to {row.team}"
    if outcome.kind == COMPLETE:
        assert outcome.usage is not None
        billed = (row.prompt_tokens, row.completion_tokens)
        counted = (outcome.usage["prompt_tokens"], outcome.usage["completion_tokens"])
        return "" if billed == counted else f"billed {billed}, the answer's usage was {counted}"
    if outcome.kind in {ERROR, LEFT, GONE} and row.completion_tokens < outcome.seen:
        return f"billed {row.completion_tokens} tokens, {outcome.seen} events had come"
    return ""


def _told(outcome: Outcome, problem: str) -> str:
    how = "stream" if outcome.stream else "whole"
    return (
        f"{outcome.request_id or 'no id'} ({outcome.team}, {how}, {outcome.kind}"
        f"{', ' + outcome.told if outcome.told else ''}, {outcome.seen} events,"
        f" {outcome.ended - outcome.began:.2f} s): {problem}"
    )


async def at_rest(node: ChaosNode) -> list[str]:
    """Until nothing is claimed any more, in inferd and in its engines; what still is, if not."""
    deadline = monotonic() + REST_S_MAX
    while True:
        status = await node.status()
        held = claims(status) if status else ["inferd does not answer"]
        if not node.real:
            held += await _held_by_engines(node, status)
        if not held or monotonic() > deadline:
            return held
        await asyncio.sleep(0.2)


def claims(status: dict[str, Any]) -> list[str]:
    """What is still claimed, by a status page; empty at rest."""
    accounts = {"requests in flight": status["requests_in_flight"]}
    for pool in status["pools"]:
        accounts[f"waiting for {pool['pool']}"] = sum(pool["waiting"].values())
        for worker in pool["workers"]:
            accounts[f"requests on {worker['worker']}"] = worker["inflight"]
            accounts[f"tokens on {worker['worker']}"] = worker["outstanding_tokens"]
    for team in status["teams"]:
        accounts[f"tokens of {team['team']}"] = team["outstanding_tokens"]
        accounts[f"requests of {team['team']}"] = team["outstanding_requests"]
    return [f"{name}: {count}" for name, count in accounts.items() if count]


async def _held_by_engines(node: ChaosNode, status: dict[str, Any]) -> list[str]:
    held = []
    for worker in node.ready(status):
        try:
            async with node.http.get(
                f"{worker['url']}/fake/stats", timeout=aiohttp.ClientTimeout(2)
            ) as answer:
                stats = await answer.json()
        except (aiohttp.ClientError, OSError, TimeoutError):
            held.append(f"{worker['worker']} does not answer")
            continue
        if not stats["faults"] and (stats["running"] or stats["waiting"]):
            held.append(f"{worker['worker']} computes {stats['running']} + {stats['waiting']}")
    return held
