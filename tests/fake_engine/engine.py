"""The parts of one fake engine, held together, and what every endpoint needs of them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from tests.fake_engine.adapters import Adapters
from tests.fake_engine.faults import FaultBook
from tests.fake_engine.metrics import Metrics
from tests.fake_engine.options import Options
from tests.fake_engine.scheduler import Generation, Scheduler
from tests.fake_engine.split import Split

_SEEN_KEPT = 2_000


@dataclass(slots=True)
class Seen:
    """What this engine was asked, for tests: see GET /fake/stats. Keeps the newest requests."""

    requests: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_SEEN_KEPT))
    counts: Counter[str] = field(default_factory=Counter)
    aborted: list[str] = field(default_factory=list)
    disconnected: int = 0

    def note(self, method: str, path: str, headers: dict[str, str], body: Any) -> None:
        """Keep a request with its body."""
        self.requests.append(
            {"method": method, "path": path, "headers": dict(headers), "body": body}
        )


class Engine:
    """One engine: options, scheduler, faults, counters, life state."""

    def __init__(self, options: Options, tasks: asyncio.TaskGroup, faults: FaultBook) -> None:
        self.options = options
        self.tasks = tasks
        self.faults = faults
        self.metrics = Metrics(options)
        self.scheduler = Scheduler(options, self.metrics)
        self.seen = Seen()
        self.adapters = Adapters(enabled=options.enable_lora)
        self.split = Split(options, tasks)
        self.live: dict[str, Generation] = {}
        self.started = False
        self.draining = False
        self.unhealthy = False
        self.paused = False
        self.weight_version = options.weight_version
        self.refreeze()

    @property
    def healthy(self) -> bool:
        """Up and not on its way out; a paused engine is healthy but not ready."""
        return self.started and not self.draining and not self.unhealthy

    def new_rid(self) -> str:
        return uuid4().hex

    def refreeze(self) -> None:
        """Let the scheduler run or stand still, as faults and pauses say."""
        stopped = any(self.faults.find(kind) for kind in ("frozen", "scheduler_death"))
        self.scheduler.freeze(frozen=self.paused or stopped)

    def submit(self, generation: Generation) -> None:
        """Start a generation and know it by its id until it ends."""
        self.live[generation.rid] = generation
        self.scheduler.submit(generation)

    def ended(self, generation: Generation) -> None:
        """A generation's last word was said."""
        self.live.pop(generation.rid, None)

    def abort(self, rid: str) -> None:
        """End a generation by id: known ids only, then by prefix, as the real engine does."""
        if self.split.abort(rid):
            self.seen.aborted.append(rid)
        if rid in self.live:
            self.metrics.aborted()
            self.seen.aborted.append(rid)
            self.scheduler.abort(rid)

    def abort_everything(self) -> None:
        self.metrics.aborted()
        self.scheduler.abort("", everything=True)
