"""One continuous-batching engine in virtual time: what a worker would do with what it is sent.

First come, first served; prompts are computed in chunks that share each step with every running
answer; blocks of prompts stay in a prefix cache, least recently used first out, and those in use
are pinned; an answer's KV tokens are reserved when it is let in. A stretch of steps that only
decode is one event, so the cost is per chunk and per answer, not per token.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

from inferd.routing.cost_model import EngineCost


class Job:
    """One request inside an engine. The callbacks are told once each; `done` not after a cancel."""

    __slots__ = (
        "cached_tokens",
        "done",
        "first",
        "first_at",
        "fresh",
        "keys",
        "left",
        "number",
        "output_tokens",
        "prompt_tokens",
        "reserved",
        "state",
    )

    def __init__(
        self,
        number: int,
        keys: tuple[int, ...],
        prompt_tokens: int,
        output_tokens: int,
        first: Callable[[], None],
        done: Callable[[], None],
    ) -> None:
        self.number = number
        self.keys = keys
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.first = first
        self.done = done
        self.cached_tokens = 0
        self.left = 0
        """Prompt tokens not yet computed."""
        self.fresh = 0
        """Prompt blocks it has to compute, and blocks kept for its answer."""
        self.reserved = 0
        self.first_at = math.inf
        self.state = "waiting"


class _Plan(NamedTuple):
    began: float
    steps: int
    chunks: list[tuple[Job, int]]
    timer: asyncio.TimerHandle


class EngineModel:
    """`kv_tokens` of cache in blocks of `block_tokens`; at most `running_max` jobs at a time.

    `all_cached`: every prefix that any engine of the set has computed is here too, as a bound.
    """

    def __init__(
        self,
        cost: EngineCost,
        kv_tokens: int,
        block_tokens: int,
        running_max: int = 256,
        all_cached: set[int] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._cost = cost
        self._block_tokens = block_tokens
        self._blocks = kv_tokens // block_tokens
        self._running_max = running_max
        self._all_cached = all_cached
        self._idle_blocks: OrderedDict[int, None] = OrderedDict()
        self._pins: dict[int, int] = {}
        self._private = 0
        self._waiting: deque[Job] = deque()
        self._prefilling: list[Job] = []
        self._running: list[tuple[int, int, Job]] = []
        self._step = 0
        self._context = 0
        self._plan: _Plan | None = None
        self.work_ms = 0.0
        """What its jobs cost beside the fixed part of the steps."""

    @property
    def jobs(self) -> int:
        return len(self._waiting) + len(self._prefilling) + len(self._running)

    def submit(self, job: Job) -> None:
        self._waiting.append(job)
        plan = self._plan
        if plan is None:
            self._begin()
        elif not plan.chunks and plan.steps > 1:
            now = self._loop.time()
            steps = self._steps_within((now - plan.began) * 1e3)
            if steps < plan.steps:  # let in at the end of the step that runs now
                plan.timer.cancel()
                ends = plan.began + self._stretch_ms(steps) / 1e3
                timer = self._loop.call_at(ends, self._end)
                self._plan = _Plan(plan.began, steps, [], timer)

    def cancel(self, job: Job) -> None:
        """It stops at the end of the running step; what it computed stays in the cache."""
        if job.state == "waiting":
            self._waiting.remove(job)
        elif job.state == "prefilling":
            self._prefilling.remove(job)
            self._private -= job.fresh + job.reserved
            for key in job.keys[: len(job.keys) - job.fresh]:
                self._unpin(key)
        elif job.state == "running":
            self._running = [entry for entry in self._running if entry[2] is not job]
            heapq.heapify(self._running)
            self._context -= job.prompt_tokens
            self._let_go(job)
        job.state = "gone"

    def _let_in(self, job: Job) -> bool:
        known = self._all_cached
        held = 0
        for key in job.keys:
            if key not in self._pins and key not in self._idle_blocks:
                break
            held += 1
        hit = held
        if known is not None:
            hit = next((n for n, key in enumerate(job.keys) if key not in known), len(job.keys))
        job.fresh = len(job.keys) - held
        job.reserved = math.ceil(job.output_tokens / self._block_tokens)
        newly = sum(key in self._idle_blocks for key in job.keys[:held])
        needed = len(self._pins) + newly + self._private + job.fresh + job.reserved
        if needed > self._blocks:
            return False
        for key in job.keys[:held]:
            self._pin(key)
        self._private += job.fresh + job.reserved
        room = self._blocks - len(self._pins) - self._private
        while len(self._idle_blocks) > room:
            self._idle_blocks.popitem(last=False)
        job.cached_tokens = min(hit * self._block_tokens, job.prompt_tokens - 1)
        job.left = job.prompt_tokens - job.cached_tokens
        job.state = "prefilling"
        self.work_ms += self._cost.prefill_ms(job.left, job.cached_tokens)
        return True

    def _begin(self) -> None:
        """Plan the next step, or the next stretch of steps in which only answers grow."""
        cost, now = self._cost, self._loop.time()
        room, chunks = cost.chunk, []
        for job in self._prefilling:
            if room <= 0:
                break
            chunks.append((job, min(job.left, room)))
            room -= chunks[-1][1]
        while room > 0 and self._waiting:
            job = self._waiting[0]
            if len(self._running) + len(self._prefilling) >= self._running_max:
                break
            if not self._let_in(job):
                break
            self._waiting.popleft()
            self._prefilling.append(job)
            chunks.append((job, min(job.left, room)))
            room -= chunks[-1][1]
        if chunks:
            steps, lasts_ms = 1, cost.step_ms(len(self._running), self._context)
            for job, tokens in chunks:
                lasts_ms += cost.prefill_ms(tokens, job.prompt_tokens - job.left)
        elif self._running:
            steps = max(1, self._running[0][0] - self._step)
            lasts_ms = self._stretch_ms(steps)
        else:
            self._plan = None
            return
        timer = self._loop.call_at(now + lasts_ms / 1e3, self._end)
        self._plan = _Plan(now, steps, chunks, timer)

    def _end(self) -> None:
        """The planned steps are over: tell who has a first token, and who is done."""
        assert self._plan is not None
        now = self._loop.time()
        _, steps, chunks, _ = self._plan
        self._step += steps
        self._context += len(self._running) * steps
        finished = []
        while self._running and self._running[0][0] <= self._step:
            job = heapq.heappop(self._running)[2]
            self._context -= job.prompt_tokens + job.output_tokens
            finished.append(job)
        began = []
        for job, tokens in chunks:
            if job.state == "gone":
                continue
            job.left -= tokens
            if not job.left:
                self._prefilled(job, now)
                began.append(job)
                if job.output_tokens <= 1:
                    finished.append(job)
                else:
                    self._context += job.prompt_tokens + 1
                    ends = self._step + job.output_tokens - 1
                    heapq.heappush(self._running, (ends, job.number, job))
        for job in finished:
            self.work_ms += job.output_tokens * (
                self._cost.c_ms + self._cost.d_ms * job.prompt_tokens / 1e3
            )
            self._let_go(job)
            job.state = "gone"
        self._begin()
        for job in began:
            job.first()
        for job in finished:
            job.done()

    def _prefilled(self, job: Job, now: float) -> None:
        self._prefilling.remove(job)
        job.first_at, job.state = now, "running"
        self._private -= job.fresh
        for key in job.keys[len(job.keys) - job.fresh :]:
            self._pin(key)
        if self._all_cached is not None:
            self._all_cached.update(job.keys)

    def _let_go(self, job: Job) -> None:
        self._private -= job.reserved
        for key in reversed(job.keys):  # a prefix becomes more recent than what builds on it
            self._unpin(key)

    def _pin(self, key: int) -> None:
        self._idle_blocks.pop(key, None)
        self._pins[key] = self._pins.get(key, 0) + 1

    def _unpin(self, key: int) -> None:
        pins = self._pins[key] - 1
        if pins:
            self._pins[key] = pins
        else:
            del self._pins[key]
            self._idle_blocks[key] = None

    def _stretch_ms(self, steps: int) -> float:
        """`steps` steps that only decode: each has one more token of context per answer."""
        running = len(self._running)
        growth = self._cost.d_ms / 1e3 * running * steps * (steps - 1) / 2
        return steps * self._cost.step_ms(running, self._context) + growth

    def _steps_within(self, passed_ms: float) -> int:
        """Steps of the stretch that are over or running after so many milliseconds."""
        running = len(self._running)
        half = self._cost.d_ms / 1e3 * running / 2
        linear = self._cost.step_ms(running, self._context) - half
        if half <= 0.0:
            return max(1, math.ceil(passed_ms / linear - 1e-9))
        root = math.sqrt(linear * linear + 4 * half * passed_ms)
        return max(1, math.ceil((root - linear) / (2 * half) - 1e-9))
