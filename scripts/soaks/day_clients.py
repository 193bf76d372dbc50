"""The clients of a compressed day: each asks when its trace says, and writes down what it got."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from inferd.capacity.workloads import Arrival
from inferd.clock import monotonic
from scripts.soaks.chaos_clients import Clients, Outcome
from scripts.soaks.day_node import MODELS

OPEN_MAX: Final = 192
"""Requests at a time: whoever comes later waits, as the run then falls behind its trace."""
SMALLER: Final = 16
"""Prompts and answers are this many times shorter than the trace's."""
LEAVE: Final = 0.1
"""The share of clients that leave before the end."""


@dataclass
class DayClients(Clients):
    """Those of `arrivals`, in `seconds` instead of `span_s`."""

    arrivals: tuple[Arrival, ...] = ()
    span_s: float = 86_400.0
    seconds: float = 900.0
    sent: int = 0
    behind_s: float = 0.0
    """The most that a request was later than its trace."""
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(OPEN_MAX))

    async def run(self) -> None:
        """All of them, to the end of the last one."""
        began = monotonic()
        faster = self.span_s / self.seconds
        async with asyncio.TaskGroup() as group:
            for arrival in self.arrivals:
                due = began + arrival.at_s / faster
                await asyncio.sleep(max(0.0, due - monotonic()))
                await self._room.acquire()
                self.behind_s = max(self.behind_s, monotonic() - due)
                self.sent += 1
                group.create_task(self._one(arrival))

    async def _one(self, arrival: Arrival) -> None:
        chance = self.chance
        outcome = Outcome(arrival.team, chance.random() < 0.7, began=monotonic())
        leaves = chance.random() < LEAVE
        try:
            body = self._body(arrival, stream=outcome.stream)
            await self.account(outcome, self.ask(outcome, body, leaves=leaves))
        finally:
            self._room.release()

    def _body(self, arrival: Arrival, *, stream: bool) -> dict[str, Any]:
        """Half of a prompt is its team's own, so that there is something to be found cached."""
        words = max(2, arrival.prompt_tokens // SMALLER)
        tokens = max(1, arrival.output_tokens // SMALLER)
        number = self.chance.randrange(1_000)
        body: dict[str, Any] = {
            "model": self.chance.choices(tuple(MODELS), (4, 4, 1))[0],
            "messages": [
                {"role": "system", "content": f"{arrival.team}:" + " rule" * (words // 2)},
                {"role": "user", "content": f"[tokens {tokens}] {number}" + " why" * (words // 2)},
            ],
            "max_tokens": min(512, tokens + 1),
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        return body
