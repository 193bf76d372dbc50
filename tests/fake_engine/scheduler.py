"""One loop that owns every generation: queue, priorities, prefill chunks, decode, KV memory.

Arrivals and aborts are taken between steps, as the real engine does. A step mixes decode with at
most `chunked_prefill_size` prompt tokens and lasts as long as the cost model says. Tokens leave
through a generation's sink, synchronously.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from tests.fake_engine.answers import Script
from tests.fake_engine.cache import KvCache
from tests.fake_engine.options import Options
from tests.fake_engine.tokens import EOS, Token

RESERVED_SHARE = 0.7
_COARSEST_WAIT_S = 0.001


class Sink(Protocol):
    """Who receives a generation's tokens. Called between steps; must not block."""

    def token(self, generation: Generation, token: Token) -> None: ...

    def finished(self, generation: Generation) -> None: ...


@dataclass(slots=True, eq=False)
class Generation:
    """One sequence. `reason` is set once: stop, length, abort, or error with `error` text."""

    rid: str
    prompt: list[int]
    script: Script
    max_new: int
    priority: int
    sink: Sink
    extra_key: str = ""
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    streaming: bool = False
    probe: bool = False
    stalled: bool = False
    arrived_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    order: int = 0
    output: list[int] = field(default_factory=list)
    text: str = ""
    cached: int | None = None
    computed: int = 0
    decoding: bool = False
    private: int = 0
    blocks: list[int] = field(default_factory=list)
    retractions: int = 0
    ended_waiting: bool = False
    reason: str | None = None
    matched: int | str | None = None
    error: str | None = None

    @property
    def context(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def cached_tokens(self) -> int:
        return self.cached or 0


class Observer(Protocol):
    """Counts what happened; see metrics."""

    def prefilled(self, computed: int, cached: int) -> None: ...

    def first_token(self, generation: Generation) -> None: ...

    def next_token(self, generation: Generation, gap_s: float) -> None: ...

    def finished(self, generation: Generation) -> None: ...

    def stepped(self, seconds: float, prefill: int, decodes: int) -> None: ...


class Scheduler:
    """See the module. `run` never returns; everything else is called from the same loop."""

    def __init__(self, options: Options, observer: Observer) -> None:
        self._options = options
        self._observer = observer
        self.cache = KvCache(
            options.max_total_tokens, options.page_size, reuse=options.prefix_cache
        )
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []
        self._inbox: list[Generation] = []
        self._aborts: list[tuple[str, bool]] = []
        self._wake = asyncio.Event()
        self._order = 0
        self._steps = 0
        self.frozen = False
        self.last_output_at = 0.0

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running or self._inbox)

    @property
    def quiet(self) -> bool:
        """No token will come without a new request."""
        return not (self.waiting or self._inbox) and all(one.stalled for one in self.running)

    @property
    def steps(self) -> int:
        return self._steps

    def submit(self, generation: Generation) -> None:
        """Hand in a generation; its sink hears of everything that follows."""
        generation.arrived_at = asyncio.get_running_loop().time()
        self._order += 1
        generation.order = self._order
        self._inbox.append(generation)
        self._wake.set()

    def abort(self, rid: str, *, everything: bool = False) -> None:
        """End every generation whose id starts with `rid` (the real engine's rule)."""
        self._aborts.append((rid, everything))
        self._wake.set()

    def freeze(self, *, frozen: bool) -> None:
        """Stop or resume making tokens, with everything else alive."""
        self.frozen = frozen
        self._wake.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self._take_inbox()
            self._take_aborts()
            self._admit()
            plan = self._plan()
            if plan is None:
                self._wake.clear()
                if not (self._inbox or self._aborts):
                    await self._wake.wait()
                due = loop.time()
                continue
            chunks, decodes = plan
            seconds = self._cost(chunks, decodes)
            due += seconds
            delay = due - loop.time()
            await asyncio.sleep(delay if delay > _COARSEST_WAIT_S else 0)
            if delay < -1:
                due = loop.time()
            self._steps += 1
            self._observer.stepped(seconds, sum(count for _, count in chunks), len(decodes))
            self._finish_step(chunks, decodes, loop.time())

    def _cost(self, chunks: list[tuple[Generation, int]], decodes: list[Generation]) -> float:
        prefill = sum(count for _, count in chunks)
        positions = sum(count * (one.computed + count / 2) for one, count in chunks)
        contexts = sum(one.context for one in decodes)
        profile = self._options.profile
        return self._options.scaled(profile.step_s(prefill, len(decodes), contexts, positions))

    def _rank(self, generation: Generation) -> int:
        """Higher is more urgent."""
        priority = generation.priority
        return -priority if self._options.low_values_first else priority

    def _least_urgent(self, generation: Generation) -> tuple[int, int]:
        return (self._rank(generation), -generation.order)

    def _take_inbox(self) -> None:
        arrivals, self._inbox = self._inbox, []
        for one in arrivals:
            limit = self._options.max_queued_requests
            if limit is None or len(self.waiting) < limit:
                self.waiting.append(one)
                continue
            lowest = min(
                self.waiting, key=lambda item: (self._rank(item), -item.order), default=None
            )
            if (
                self._options.priority_scheduling
                and lowest is not None
                and self._rank(one) > self._rank(lowest)
            ):
                self.waiting.remove(lowest)
                self._refuse(lowest, "The request is aborted by a higher priority request.")
                self.waiting.append(one)
            else:
                self._refuse(one, "The request queue is full.")
        if arrivals and self._options.priority_scheduling:
            self._sort()

    def _sort(self) -> None:
        self.waiting = deque(sorted(self.waiting, key=lambda one: (-self._rank(one), one.order)))

    def _refuse(self, generation: Generation, message: str) -> None:
        generation.reason = "error"
        generation.error = message
        self._observer.finished(generation)
        generation.sink.finished(generation)

    def _take_aborts(self) -> None:
        aborts, self._aborts = self._aborts, []
        for rid, everything in aborts:
            for one in [*self.waiting, *self.running]:
                if everything or one.rid.startswith(rid):
                    self._end(one, "abort", None)

    def _end(self, generation: Generation, reason: str, matched: int | str | None) -> None:
        if generation in self.running:
            self.running.remove(generation)
        else:
            self.waiting.remove(generation)
            generation.ended_waiting = True
        self._vacate(generation)
        generation.reason = reason
        generation.matched = matched
        self.last_output_at = asyncio.get_running_loop().time()
        self._observer.finished(generation)
        generation.sink.finished(generation)

    def _vacate(self, generation: Generation) -> None:
        """Give the KV memory back, leaving what was computed in the prefix cache."""
        known = (generation.prompt + generation.output)[: generation.computed]
        fresh = self.cache.names(known, generation.extra_key)[len(generation.blocks) :]
        spare = generation.private - len(fresh) * self.cache.page
        self.cache.share(fresh)
        self.cache.give(spare)
        self.cache.release(generation.blocks + fresh)
        generation.blocks = []
        generation.private = 0
        generation.computed = 0
        generation.decoding = False

    def _admit(self) -> None:
        while self.waiting:
            head = self.waiting[0]
            if len(self.running) < self._options.max_running_requests and self._start(head):
                self.waiting.popleft()
                self.running.append(head)
                continue
            if not self._preempt_for(head):
                return

    def _start(self, generation: Generation) -> bool:
        sequence = generation.prompt + generation.output
        names = self.cache.names(sequence[:-1], generation.extra_key)
        blocks = names[: self.cache.match(names)]
        held = len(blocks) * self.cache.page
        self.cache.hold(blocks)
        room = self.cache.free + self.cache.evictable - self._promised()
        wanted = len(sequence) - held + self._reserve(generation)
        if (wanted > room and self.running) or not self.cache.take(len(sequence) - held):
            self.cache.release(blocks)
            return False
        generation.blocks = blocks
        generation.private = len(sequence) - held
        generation.computed = held
        if generation.cached is None:
            generation.cached = held
        self._observer.prefilled(len(sequence) - held, held)
        return True

    def _reserve(self, generation: Generation) -> int:
        return int((generation.max_new - len(generation.output)) * RESERVED_SHARE)

    def _promised(self) -> int:
        return sum(self._reserve(one) for one in self.running)

    def _preempt_for(self, head: Generation) -> bool:
        options = self._options
        if not (options.priority_scheduling and options.priority_preemption and self.running):
            return False
        victim = min(self.running, key=self._least_urgent)
        if self._rank(head) - self._rank(victim) <= options.preemption_threshold:
            return False
        self._retract(victim)
        return True

    def _retract(self, victim: Generation) -> None:
        self.running.remove(victim)
        self._vacate(victim)
        victim.retractions += 1
        self.waiting.append(victim)
        if self._options.priority_scheduling:
            self._sort()
        else:
            self.waiting.rotate(1)

    def _plan(self) -> tuple[list[tuple[Generation, int]], list[Generation]] | None:
        if self.frozen:
            return None
        budget = self._options.chunked_prefill_size
        chunks: list[tuple[Generation, int]] = []
        decodes: list[Generation] = []
        for one in self.running:
            if one.stalled:
                continue
            if one.decoding:
                decodes.append(one)
            elif budget > 0:
                count = min(budget, one.context - one.computed)
                budget -= count
                chunks.append((one, count))
        return (chunks, decodes) if chunks or decodes else None

    def _finish_step(
        self, chunks: list[tuple[Generation, int]], decodes: list[Generation], now: float
    ) -> None:
        for one, count in chunks:
            one.computed += count
            if one.computed == one.context:
                one.decoding = True
                self._publish_prompt(one)
                if one.max_new:
                    self._make_token(one, now)
                else:
                    self._end(one, "length", None)
        for one in decodes:
            if one.decoding:
                one.computed += 1
                self._make_token(one, now)

    def _publish_prompt(self, generation: Generation) -> None:
        """Prefill done: the prompt's whole blocks become shareable while it still runs."""
        names = self.cache.names(generation.prompt, generation.extra_key)
        fresh = names[len(generation.blocks) :]
        self.cache.share(fresh)
        generation.private -= len(fresh) * self.cache.page
        generation.blocks = generation.blocks + fresh

    def _make_token(self, generation: Generation, now: float) -> None:
        if not self.cache.take(1):
            self._retract(min(self.running, key=self._least_urgent))
            if generation not in self.running or not self.cache.take(1):
                return
        generation.private += 1
        self.last_output_at = now
        first = not generation.output
        gap = now - generation.last_at
        generation.last_at = now
        if first:
            generation.first_at = now
        script = generation.script
        if len(generation.output) >= script.natural_end and not generation.ignore_eos:
            token, at_end = Token(EOS, ""), True
        else:
            token, at_end = next(script.tokens), False
        generation.output.append(token.id)
        if first:
            self._observer.first_token(generation)
        else:
            self._observer.next_token(generation, gap)
        self._deliver(generation, token, at_end=at_end)

    def _deliver(self, generation: Generation, token: Token, *, at_end: bool) -> None:
        before = len(generation.text)
        generation.text += token.text
        stop = self._stop_in(generation, before) if token.text else None
        if stop is not None:
            generation.text = generation.text[: generation.text.index(stop)]
        generation.sink.token(generation, token)
        if stop is not None:
            self._end(generation, "stop", stop)
        elif at_end:
            self._end(generation, "stop", EOS)
        elif len(generation.output) >= generation.max_new:
            self._end(generation, "length", None)

    @staticmethod
    def _stop_in(generation: Generation, before: int) -> str | None:
        for stop in generation.stops:
            if generation.text.find(stop, max(0, before - len(stop))) >= 0:
                return stop
        return None
