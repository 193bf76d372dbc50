"""Which target takes a request: policies are pure, they get a request and targets, return a choice.

A choice may be to wait: for a warm worker that is busy now (late binding), or for room. The reason
of a choice is a metric label and part of the ledger row, so that operators see why traffic went
where it went. `predicted_ttft` is the default; the others are what it is measured against.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple, Protocol

from xxhash import xxh3_64_intdigest

from inferd.routing.claim import Asked
from inferd.routing.cost_model import EngineCost
from inferd.routing.target import RATE_S, Target

SLOT_TOKENS: Final = 64
"""What a slot in flight weighs beside its tokens: a step is paid for each running sequence however
short its answer, so a flood of tiny requests must not look free next to one long answer."""
RECOMPUTE_WEIGHT: Final = 10.0
"""EXT: what a prompt's own prefill costs those behind it, beside what it costs itself."""
HINT_TOKENS: Final = 64
"""A target that was sent something under the same `prompt_cache_key` counts as if it held so much
more of the prompt: it wins among equals, and no queue is waited in for it."""
WALL_MS: Final = 20_000.0
KNEE: Final = 0.7
"""Above this share of the per-token budget a target becomes dearer, steeply."""
WARMS: Final = 2.0
"""How much of a prompt's own prefill the wall counts before it is sent: what is computed once more
elsewhere fills that target, and takes room from prefixes that are warm there. Without it a holder
above the knee loses prompts to targets that are above it as soon as they have computed them."""
FULL: Final = 0.92
"""Above this share it takes nothing, unless it is idle."""
HOLD_MS: Final = 100.0
HOLD_STEPS: Final = 2.5
"""A target with more prefill ahead than this is sent no more: what waits here can still be
reordered, refused and cancelled, what waits in an engine cannot."""
HASHED_BLOCKS: Final = 16
"""Leading blocks that `bounded_hash` hashes: 1,024 tokens, so beyond a shared system prompt."""
LOAD_FACTOR: Final = 1.25
LOAD_SLACK_TOKENS: Final = 4_096
"""Few requests on many targets keep their home although one of them is above the mean."""
RING_POINTS: Final = 128


class Reason(StrEnum):
    """Why a target was chosen."""

    ONLY_CHOICE = "only_choice"  # no other target had room
    LEAST_LOADED = "least_loaded"
    TIE = "tie"  # several carried the same: chance decided
    AFFINITY = "affinity"  # it holds most of the prompt, as far as any does, or was hinted at
    SPILL = "spill"  # another one holds more of the prompt, but would answer later
    IDLE = "idle"  # the better one was busy, this one had nothing to do
    NO_PREFIX = "no_prefix"  # nobody holds any of it: the cheapest
    NEXT = "next"  # its turn


class Wait(Enum):
    """Why nothing was chosen."""

    BUSY = auto()  # the best target takes nothing now, from anybody
    ROOM = auto()  # it has no room for this request, but may for a smaller one
    LATE = auto()  # no target can answer in time any more


class Placement(NamedTuple):
    """A choice, its reason, and when it should answer."""

    target: Target
    reason: Reason
    ttft_ms: float | None = None
    wait: Wait | None = None
    """Not now: the target is who it waits for."""


@dataclass(slots=True)
class Conditions:
    """What all decisions of a pool share. The cost is replaced when its slopes were refitted."""

    cost: EngineCost
    tpot_ms: float
    refuse_late: bool = False
    hold_ms: float = HOLD_MS
    """Prefill ahead of a target that is sent no more."""

    def recost(self, cost: EngineCost, tpot_ms: float) -> None:
        self.cost, self.tpot_ms = cost, tpot_ms
        self.hold_ms = max(HOLD_MS, HOLD_STEPS * (cost.a_ms + cost.b_ms * cost.chunk))


class Policy(Protocol):
    """`targets`: at least one, all of them ready and allowed, up to date, with room or without."""

    def choose(self, asked: Asked, targets: Sequence[Target], now: float) -> Placement: ...

    def takes(self, target: Target) -> bool:
        """Whether the target may be sent anything now."""
        ...


class _Slots:
    """What policies share that send a request at once: a target takes as many as it has slots."""

    def takes(self, target: Target) -> bool:
        return target.ready and target.inflight < target.inflight_max


class LeastTokens(_Slots):
    """Least outstanding tokens; then fewest slots in flight; then chance, so idle targets share."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, asked: Asked, targets: Sequence[Target], now: float) -> Placement:
        """Among those with room."""
        del now
        best: list[Target] = []
        least_load = least_inflight = math.inf
        candidates = 0
        for target in targets:  # one plain loop: it runs for every request
            inflight = target.inflight
            if inflight and inflight + asked.choices > target.inflight_max:
                continue
            candidates += 1
            load = target.outstanding_tokens + SLOT_TOKENS * inflight
            if load < least_load or (load == least_load and inflight < least_inflight):
                least_load, least_inflight = load, inflight
                best = [target]
            elif load == least_load and inflight == least_inflight:
                best.append(target)
        if not candidates:
            return _no_slots(targets)
        if candidates == 1:
            return Placement(best[0], Reason.ONLY_CHOICE)
        if len(best) == 1:
            return Placement(best[0], Reason.LEAST_LOADED)
        return Placement(self._rng.choice(best), Reason.TIE)


class RoundRobin(_Slots):
    """One after the other, those without room left out."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, asked: Asked, targets: Sequence[Target], now: float) -> Placement:
        del now
        with_room = [target for target in targets if target.has_slots(asked.choices)]
        if not with_room:
            return _no_slots(targets)
        after = [target for target in with_room if target.id > self._last]
        chosen = min(after or with_room, key=lambda target: target.id)
        self._last = chosen.id
        return Placement(chosen, Reason.NEXT)


class BoundedHash(_Slots):
    """Consistent hashing of the first blocks, or of the client's hint, with a bounded load.

    From the hash on along the ring, to the first target whose outstanding tokens, this request
    included, are at most 1.25 x the mean plus a slack.
    """

    def __init__(
        self,
        rng: random.Random,
        blocks: int = HASHED_BLOCKS,
        slack_tokens: int = LOAD_SLACK_TOKENS,
    ) -> None:
        self._fallback = LeastTokens(rng)
        self._blocks = blocks
        self._slack_tokens = slack_tokens
        self._ring: list[tuple[int, str]] = []
        self._members: tuple[str, ...] = ()

    def choose(self, asked: Asked, targets: Sequence[Target], now: float) -> Placement:
        if not asked.prefix.keys and asked.prefix.hint is None:
            return self._fallback.choose(asked, targets, now)
        members = tuple(target.id for target in targets)
        if members != self._members:
            self._members = members
            self._ring = ring(members)
        by_id = {target.id: target for target in targets if target.has_slots(asked.choices)}
        if not by_id:
            return _no_slots(targets)
        total = sum(target.outstanding_tokens for target in targets) + asked.prompt_tokens
        limit = LOAD_FACTOR * total / len(targets) + self._slack_tokens
        keys = asked.prefix.keys
        last = asked.prefix.hint
        if last is None:
            last = keys[min(self._blocks, len(keys)) - 1]
        point = (xxh3_64_intdigest(last.to_bytes(8, "little")), "")
        at = bisect(self._ring, point)
        seen: set[str] = set()
        for step in range(len(self._ring)):
            _, name = self._ring[(at + step) % len(self._ring)]
            if name in seen:
                continue
            seen.add(name)
            target = by_id.get(name)
            if target is not None and target.outstanding_tokens <= limit:
                return Placement(target, Reason.AFFINITY if len(seen) == 1 else Reason.SPILL)
            if len(seen) == len(members):
                break
        return self._fallback.choose(asked, list(by_id.values()), now)


class PredictedTTFT:
    """Cheapest of those that can answer in time.

    The cost is the predicted first token, what the prefill costs the others, and a wall before a
    target's budget per output token is used up.

    It waits for the cheapest while that one is busy, unless another is idle. Nobody can answer in
    time: `Wait.LATE`. A batch request has no time, and takes only what others leave free.
    """

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions

    def choose(  # noqa: C901, PLR0912 - one plain loop, run for every waiting request, often
        self, asked: Asked, targets: Sequence[Target], now: float
    ) -> Placement:
        cost = self._conditions.cost
        e_ms = cost.e_ms / 1e6
        room_ms = (asked.due - now) * 1e3 if self._conditions.refuse_late else math.inf
        share = WARMS * cost.b_ms / (RATE_S * 1e3)
        depths, tokens, hinted = asked.depths, asked.prompt_tokens, asked.hinted
        block_tokens = asked.prefix.block_tokens
        best: Target | None = None
        best_idle: Target | None = None
        least = least_idle = math.inf
        best_ttft = idle_ttft = 0.0
        best_depth = deepest = 0
        for target in targets:
            depth = 0
            hit = 0
            if depths and (depth := depths.get(target.bit, 0)):
                hit = min(int(depth * block_tokens), tokens - 1)
                deepest = max(deepest, depth)
            miss = tokens - hit
            own = miss * target.token_ms + e_ms * miss * (hit + miss * 0.5)
            ttft = target.base_ms + own
            idle = not target.leases
            if ttft > room_ms and not idle:
                continue
            if asked.spills and not idle and self._closed(target):
                continue
            total = ttft + RECOMPUTE_WEIGHT * own
            if hinted and hinted >> target.bit & 1:
                total -= (1 + RECOMPUTE_WEIGHT) * HINT_TOKENS * target.token_ms
            over = target.utilization + miss * share - KNEE
            if over > 0.0 and not idle:
                total += WALL_MS * over
            if total < least or (total == least and best and self._nearer(asked, target, best)):
                least, best, best_ttft, best_depth = total, target, ttft, depth
            if idle and total < least_idle:
                least_idle, best_idle, idle_ttft = total, target, ttft
        if best is None:
            if asked.spills and not self._late(asked, targets, room_ms):
                return Placement(targets[0], Reason.SPILL, None, Wait.BUSY)
            return Placement(targets[0], Reason.NO_PREFIX, None, Wait.LATE)
        reason = (
            Reason.NO_PREFIX if not deepest else Reason.AFFINITY if best_depth else Reason.SPILL
        )
        if best_depth < deepest:
            reason = Reason.SPILL
        elif hinted >> best.bit & 1:
            reason = Reason.AFFINITY
        if not best.leases:
            return Placement(best, reason, best_ttft)
        wait = self._wait(best, asked, now)
        if wait is None:
            return Placement(best, reason, best_ttft)
        if best_idle is not None:
            return Placement(best_idle, Reason.IDLE, idle_ttft)
        return Placement(best, reason, best_ttft, wait)

    def takes(self, target: Target) -> bool:
        if not target.ready:
            return False
        if not target.leases:
            return True
        return target.inflight < target.inflight_max and not self._closed(target)

    def _closed(self, target: Target) -> bool:
        return target.backlog_ms > self._conditions.hold_ms or target.utilization > FULL

    def _wait(self, target: Target, asked: Asked, now: float) -> Wait | None:
        if self._closed(target):
            return Wait.BUSY
        if not target.has_slots(asked.choices):
            return Wait.ROOM
        free = target.kv_free(now)
        if free is None or asked.prompt_tokens + asked.output_tokens <= free:
            return None  # as much as it can need, whatever is there already
        return Wait.ROOM if target.kv_need(asked.claim(target.bit)) > free else None

    def _late(self, asked: Asked, targets: Sequence[Target], room_ms: float) -> bool:
        cost = self._conditions.cost
        return all(
            target.base_ms + cost.prefill_ms(asked.prompt_tokens - hit, hit) > room_ms
            for target in targets
            for hit in (asked.hit_tokens(target.bit),)
        )

    def _nearer(self, asked: Asked, one: Target, other: Target) -> bool:
        """Of two that cost the same: by the hash of the deepest block that anyone holds.

        Rendezvous hashing: a restart, which forgets the index, finds the same homes.
        """
        keys = asked.prefix.keys
        key = asked.prefix.hint
        if key is None:
            key = keys[min(HASHED_BLOCKS, len(keys)) - 1] if keys else 0
        return rendezvous(key, one.id) > rendezvous(key, other.id)


def rendezvous(key: int, target_id: str) -> int:
    """A target's rank for a key: the highest wins, and only a lost winner moves a key."""
    return xxh3_64_intdigest(target_id.encode(), seed=key)


def ring(members: Sequence[str]) -> list[tuple[int, str]]:
    """Points of a consistent hash, 128 of each member, in order."""
    return sorted(
        (xxh3_64_intdigest(name.encode(), seed=number), name)
        for name in members
        for number in range(RING_POINTS)
    )


def _no_slots(targets: Sequence[Target]) -> Placement:
    """It waits for the target with most room, which is held for it."""
    roomiest = max(targets, key=lambda target: target.inflight_max - target.inflight)
    return Placement(roomiest, Reason.ONLY_CHOICE, None, Wait.ROOM)
