"""Clients of several teams: ask, read, sometimes leave, and write down how each request ended."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from inferd.clock import monotonic
from scripts.soaks.chaos_node import MODEL, TEAMS, ChaosNode

HANG_S = 60.0
"""Twice the deadline of a request: whoever waits longer hangs."""
AFTER_KILL_S = 1.0
"""Connections of a killed inferd break within this time after the kill."""

COMPLETE, ERROR, LEFT, GONE, BROKEN = "complete", "error", "left", "gone", "broken"
KINDS = {
    COMPLETE: "a whole answer with its usage",
    ERROR: "an error that says so: a status, or the last event of a stream",
    LEFT: "the client left",
    GONE: "inferd itself was killed, or not there",
    BROKEN: "none of these: a fault of inferd",
}


@dataclass(slots=True)
class Outcome:
    """How one request ended, as its client saw it. Times are loop times."""

    team: str
    stream: bool
    began: float
    ended: float = 0.0
    first: float | None = None
    """When the first event came."""
    kind: str = BROKEN
    request_id: str | None = None
    usage: dict[str, Any] | None = None
    seen: int = 0
    """Events with text that came."""
    told: str = ""
    """The error's code, or what was wrong."""


@dataclass
class Clients:
    """So many at a time, each asking again after a while."""

    node: ChaosNode
    chance: random.Random
    number: int
    pause_s: float
    outcomes: list[Outcome] = field(default_factory=list)
    open: int = 0
    over: bool = False
    on_outcome: Callable[[Outcome], None] = lambda _: None

    async def run(self) -> None:
        """Until `over`; then until the last request has ended."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.number):
                group.create_task(self._client())

    async def _client(self) -> None:
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / self.pause_s))
            if self.over:
                return
            outcome = Outcome(
                self.chance.choice(TEAMS), self.chance.random() < 0.7, began=monotonic()
            )
            await self.account(outcome, self._ask(outcome))
            self.on_outcome(outcome)

    async def account(self, outcome: Outcome, asking: Awaitable[None]) -> None:
        """Ask, and write down how it ended."""
        self.open += 1
        try:
            async with asyncio.timeout(HANG_S):
                await asking
        except TimeoutError:
            outcome.told = f"no end after {HANG_S:g} s"
        except (aiohttp.ClientError, OSError) as error:
            self._broke(outcome, error)
        finally:
            self.open -= 1
        outcome.ended = monotonic()
        self.outcomes.append(outcome)

    async def _ask(self, outcome: Outcome) -> None:
        tokens = self.chance.randrange(5, 80)
        prompt = f"[tokens {tokens}] Question {self.chance.randrange(50)}. " + "why " * (
            self.chance.randrange(200) if self.chance.random() < 0.2 else 5
        )
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens if self.node.real else 100,
            "stream": outcome.stream,
        }
        if outcome.stream:
            body["stream_options"] = {"include_usage": True}
        await self.ask(outcome, body, leaves=self.chance.random() < 0.15)

    async def ask(self, outcome: Outcome, body: dict[str, Any], *, leaves: bool) -> None:
        """Send, and read to the end, or leave at some point before it."""
        patience = self.chance.randrange(6) if leaves else None
        if leaves and not outcome.stream:
            try:
                async with asyncio.timeout(self.chance.uniform(0.05, 0.5)):
                    await self._send(outcome, body, None)
            except TimeoutError:
                outcome.kind = LEFT
            return
        await self._send(outcome, body, patience)

    async def _send(self, outcome: Outcome, body: dict[str, Any], patience: int | None) -> None:
        headers = {"Authorization": f"Bearer {self.node.keys[outcome.team]}"}
        async with self.node.http.post(self.node.url, json=body, headers=headers) as answer:
            outcome.request_id = answer.headers.get("x-request-id")
            if answer.status != 200:
                error = (await answer.json())["error"]
                outcome.kind, outcome.told = ERROR, f"{answer.status} {error['code']}"
            elif outcome.stream:
                await self._read(outcome, answer, patience)
            else:
                whole = await answer.json()
                outcome.usage = whole["usage"]
                outcome.kind = COMPLETE if whole["choices"][0]["finish_reason"] else BROKEN

    async def _read(
        self, outcome: Outcome, answer: aiohttp.ClientResponse, patience: int | None
    ) -> None:
        finished = False
        async for line in answer.content:
            if not line.startswith(b"data: "):
                continue
            outcome.first = outcome.first or monotonic()
            data = line[6:].strip()
            if data == b"[DONE]":
                whole = finished and outcome.usage is not None
                outcome.kind = COMPLETE if whole else BROKEN
                outcome.told = "" if whole else "[DONE] without a finish or a usage"
                continue
            event = json.loads(data)
            if "error" in event:
                outcome.kind, outcome.told = ERROR, str(event["error"]["code"])
                outcome.usage = event["error"].get("usage")
                continue
            if outcome.kind != BROKEN:
                outcome.kind, outcome.told = BROKEN, "an event after the end"
                return
            outcome.usage = event.get("usage") or outcome.usage
            for choice in event["choices"]:
                finished = finished or choice["finish_reason"] is not None
                outcome.seen += bool(choice["delta"].get("content"))
            if patience is not None and outcome.seen >= patience:
                outcome.kind = LEFT
                answer.close()
                return
        if outcome.kind == BROKEN and not outcome.told:
            outcome.told = "a stream that just ended"

    def _broke(self, outcome: Outcome, error: Exception) -> None:
        """A connection that broke: inferd was killed, or is at fault."""
        now = monotonic()
        if outcome.kind == ERROR:
            return  # the stream had said so before
        node = self.node
        killed = any(outcome.began <= at + AFTER_KILL_S and at <= now for at in node.killed_at)
        down = len(node.killed_at) >= len(node.up_at) and bool(node.killed_at)
        outcome.kind = GONE if killed or down else BROKEN
        outcome.told = f"{type(error).__name__}: {error}"[:200]
