"""What is known of a pool's targets: load, prompt blocks, the engine's cost; and what things cost.

Owns the load table, the block index and the slopes; everything in it comes from our own dispatches
and the first tokens and bills that followed. Engines' reports correct the free KV tokens only; one
that is missing means unknown. Leases report here through the scheduler, each event once.
"""

from __future__ import annotations

import random
from typing import Final

from inferd.inference import Usage
from inferd.routing.block_index import BlockIndex
from inferd.routing.claim import Asked, Claim
from inferd.routing.cost_model import Slopes
from inferd.routing.headroom import Headroom
from inferd.routing.lease import Lease
from inferd.routing.load import LoadTable
from inferd.routing.placement import (
    BoundedHash,
    Conditions,
    LeastTokens,
    Placement,
    Policy,
    PredictedTTFT,
    RoundRobin,
)
from inferd.routing.serving import HEADROOM, KV_TOKENS_GUESS, Serving
from inferd.routing.target import Target

ANSWER_TOKENS_START: Final = 200.0
_ANSWER_WEIGHT = 0.01  # of one answer in their mean length
_TEAM_ANSWER_WEIGHT = 0.05
TEAMS_MAX: Final = 4_096
"""Whose answers' lengths are kept; the one longest without an answer is forgotten."""
IDLE_TPOT_FACTOR: Final = 2.0
"""The budget per output token is never tighter than this many steps of an idle engine."""
WARM_PROMPT_TOKENS_MIN: Final = 256
"""A shorter warm-up prompt says nothing of the cost of a prompt token."""
STEPS_MIN: Final = 16
"""A shorter answer says little of a step."""
PREFILL_SHARE_MAX: Final = 0.1
"""Above it an answer says more of others' prompts than of a step."""
RESIDUAL_STEPS: Final = 1.5
"""Steps of a prompt beside its chunks: the rest of the one that runs, and its last, broken one."""
REFIT: Final = 0.2
"""Slopes that moved by less change nothing: that is within what the observations are off by."""


class Account:
    """Of one pool. `now` is loop time everywhere."""

    def __init__(self, serving: Serving, rng: random.Random) -> None:
        self._rng = rng
        self.load = LoadTable()
        self.index = BlockIndex()
        self.slopes = Slopes()
        self._applied = (1.0, 1.0)
        self._answer_tokens = ANSWER_TOKENS_START
        self._answers_of: dict[str, float] = {}
        self.apply(serving)

    def apply(self, serving: Serving) -> None:
        """New settings, for what comes."""
        self.serving = serving
        self.conditions = Conditions(serving.cost, 0.0, serving.refuse_late)
        self.policy = _policy(serving, self.conditions, self._rng)
        self._recost()

    @property
    def answer_tokens(self) -> int:
        """How long an answer is on average."""
        return max(1, int(self._answer_tokens))

    def answer_tokens_of(self, team: str) -> int:
        """The same of one team, which pays for as much before its bill is there."""
        return max(1, int(self._answers_of.get(team, self._answer_tokens)))

    def up(self, target_id: str, inflight_max: int, now: float) -> None:
        made = self.load.up(target_id, inflight_max, now)
        if made is not None:
            made.bit = self.index.add_target()
            made.kv_tokens = self.serving.kv_tokens

    def down(self, target_id: str, now: float) -> None:
        gone = self.load.down(target_id, now)
        if gone is not None:
            self.index.remove_target(gone.bit)

    def warmed(self, prompt_tokens: int, ttft_s: float, tpot_s: float) -> None:
        """A warm-up measured an idle worker: where the slopes begin."""
        base = self.serving.cost
        if tpot_s <= 0 or ttft_s <= 0:
            return
        step = tpot_s * 1e3 / base.step_ms(1, prompt_tokens)
        steps_ms = base.a_ms * (1 + prompt_tokens / base.chunk) * step
        prefill = step
        if prompt_tokens >= WARM_PROMPT_TOKENS_MIN:
            prefill = (ttft_s * 1e3 - steps_ms) / base.prefill_ms(prompt_tokens, 0)
        self.slopes.start(step, prefill)
        self._recost()

    def derive(self, now: float) -> None:
        """Bring what is derived of every target up to date."""
        conditions = self.conditions
        for target in self.load.targets:
            target.derive(conditions.cost, conditions.tpot_ms, now)

    def look_up(self, asked: Asked) -> None:
        """Who holds how much of the prompt, by now."""
        if asked.depths_at != self.index.changes:
            asked.depths_at = self.index.changes
            asked.depths = self.index.depths(asked.prefix.keys) if asked.prefix.keys else None
            asked.most_held_tokens = asked.most_held()
            if asked.prefix.hint is not None:
                asked.hinted = self.index.holders(asked.prefix.hint)

    def price(self, asked: Asked) -> int:
        """What the request should cost its team where most of its prompt is."""
        hit = asked.most_held_tokens
        return self._cost(asked.prompt_tokens - hit, asked.charged_tokens, asked.prompt_tokens)

    def price_at(self, claim: Claim, asked: Asked) -> int:
        """What it should cost at the target it was placed on."""
        return self._cost(claim.miss_tokens, asked.charged_tokens, claim.prompt_tokens)

    def bill(self, usage: Usage) -> int:
        """What it did cost."""
        prompt = usage.prompt_tokens
        return self._cost(prompt - usage.cached_tokens, usage.completion_tokens, prompt)

    def grant(
        self, asked: Asked, placement: Placement, claim: Claim, lease: Lease, now: float
    ) -> None:
        """Count a lease and note what its target will hold."""
        target = placement.target
        base = self.serving.cost
        if not target.backlog_tokens and claim.miss_tokens * 2 >= base.chunk:
            # Nothing ahead of it: what it takes says what prefill costs. Of prompts ahead nobody
            # knows how much is computed already, so whoever waits for them teaches the wrong slope.
            steps = RESIDUAL_STEPS + claim.miss_tokens / base.chunk
            step_ms = base.step_ms(target.decodes, target.context_tokens)
            own_ms = base.prefill_ms(claim.miss_tokens, claim.hit_tokens)
            lease.parts_ms = (step_ms * steps, own_ms)
        if placement.ttft_ms is not None:
            lease.predicted_ttft_s = placement.ttft_ms / 1e3
        self.load.take(lease)
        target.derive(self.conditions.cost, self.conditions.tpot_ms, now)
        prefix = asked.prefix
        blocks = prefix.keys if prefix.hint is None else (prefix.hint, *prefix.keys)
        if blocks:
            kv_tokens = target.kv_tokens or KV_TOKENS_GUESS
            capacity = max(1, int(kv_tokens / prefix.block_tokens))
            self.index.insert(target.bit, blocks, capacity)

    def answers(self, lease: Lease) -> None:
        """A first token came, or should have come."""
        self.load.answers(lease)
        lease.step_ms = self._step_ms(lease.generation)
        lease.prefill_share = self._prefill_share(lease)
        if lease.first_token_at is not None and lease.parts_ms is not None:
            took_ms = (lease.first_token_at - lease.granted_at) * 1e3
            self.slopes.prompt_took(took_ms, *lease.parts_ms)
            self._refit()

    def ended(self, lease: Lease, now: float) -> None:
        """A lease was given back."""
        if lease.had_first_token:
            lease.step_ms = (lease.step_ms + self._step_ms(lease.generation)) / 2
        lease.ended_at = now
        self.load.give_back(lease, now)

    def billed(self, lease: Lease, usage: Usage) -> None:
        """What a lease's answer was: how long answers are, and what a step takes."""
        tokens = usage.completion_tokens
        if not tokens:
            return
        self._learn_length(lease.ticket.team, tokens / lease.claim.choices)
        steps = tokens // lease.claim.choices - 1
        if lease.first_token_at is None or lease.ended_at is None or steps < STEPS_MIN:
            return
        if lease.prompt_only:
            return  # its answer came from another target
        tpot_ms = (lease.ended_at - lease.first_token_at) * 1e3 / steps
        share = (lease.prefill_share + self._prefill_share(lease)) / 2
        if share > PREFILL_SHARE_MAX:
            return  # how much of the answer's time others' prompts took is a guess
        self.slopes.answer_took(tpot_ms, lease.step_ms, share)
        self._refit()

    def _learn_length(self, team: str, tokens: float) -> None:
        mean = self._answers_of.pop(team, self._answer_tokens)
        self._answer_tokens += _ANSWER_WEIGHT * (tokens - self._answer_tokens)
        if len(self._answers_of) >= TEAMS_MAX:
            del self._answers_of[next(iter(self._answers_of))]
        self._answers_of[team] = mean + _TEAM_ANSWER_WEIGHT * (tokens - mean)

    def least_ms(self, prompt_tokens: int) -> float:
        """The soonest first token of a prompt that nobody holds, what is ahead of it included."""
        cost = self.conditions.cost
        prefill_ms = cost.prefill_ms(prompt_tokens, 0)
        return min(
            (
                target.base_ms + prefill_ms + prompt_tokens * (target.token_ms - cost.b_ms)
                for target in self.load.targets
                if target.ready
            ),
            default=0.0,
        )

    def own_ms(self, asked: Asked) -> float:
        """The soonest first token if nothing were ahead of it."""
        hit = asked.most_held_tokens
        return self.conditions.cost.alone_ms(asked.prompt_tokens - hit, hit)

    def _step_ms(self, target: Target) -> float:
        """A step that decodes what the target decodes now, as an engine was first thought of."""
        return self.serving.cost.step_ms(target.decodes, target.context_tokens)

    def _prefill_share(self, lease: Lease) -> float:
        """Of the target's time, what prompts take, by the dearer of what is thought of them."""
        at = lease.ended_at or lease.first_token_at or lease.granted_at
        dearer_ms = max(self.conditions.cost.b_ms, self.serving.cost.b_ms)
        return lease.generation.prefill_rate(at) * dearer_ms

    def _refit(self) -> None:
        step, prefill = self._applied
        moved = abs(self.slopes.step - step) > REFIT * step
        if moved or abs(self.slopes.prefill - prefill) > REFIT * prefill:
            self._recost()

    def _cost(self, new_tokens: int, output_tokens: int, context_tokens: int) -> int:
        weight = self.conditions.cost.output_weight(context_tokens)
        return int(new_tokens + weight * output_tokens)

    def _recost(self) -> None:
        self._applied = (self.slopes.step, self.slopes.prefill)
        cost = self.serving.cost.scaled(*self._applied)
        tpot_ms = float(self.serving.targets.tpot_ms)
        self.conditions.recost(cost, max(tpot_ms, IDLE_TPOT_FACTOR * cost.a_ms))
        for target in self.load.targets:
            target.changed()


def _policy(serving: Serving, conditions: Conditions, rng: random.Random) -> Policy:
    if serving.placement == "predicted_ttft":
        return PredictedTTFT(conditions)
    if serving.placement == "bounded_hash":
        return BoundedHash(rng, serving.hashed_blocks)
    if serving.placement == HEADROOM:
        return Headroom()
    if serving.placement == "round_robin":
        return RoundRobin()
    assert serving.placement == "least_tokens", serving.placement
    return LeastTokens(rng)
