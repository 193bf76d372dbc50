"""What one target carries: slots, tokens, prefill ahead, answers running, KV cache. Pure.

One generation of a target, from up to down. What was counted for a claim is given back for the same
claim, so every count is zero at rest. An engine's own report corrects what this says of its KV
cache, and nothing else.
"""

from __future__ import annotations

import math
from typing import Final

from inferd.routing.claim import Claim
from inferd.routing.cost_model import EngineCost
from inferd.routing.occupancy import Occupancy

RATE_S: Final = 5.0
"""Over which the prefill that a target is sent is averaged."""
REPORT_S_MAX: Final = 2.0
"""An engine's report that is older says nothing."""
STALE_S: Final = 0.02
"""How long what was derived from an unchanged account is kept: the averaged rate decays."""
_NEVER: Final = -math.inf


class Target:
    """One generation of a target, from up to down. `ready`: it takes new leases."""

    __slots__ = (
        "_derived_at",
        "_pins",
        "_rate",
        "_rate_at",
        "_report_at",
        "_report_over",
        "adapters",
        "backlog_ms",
        "backlog_tokens",
        "base_ms",
        "bit",
        "context_tokens",
        "decodes",
        "held_tokens",
        "id",
        "inflight",
        "inflight_max",
        "kv_claimed",
        "kv_tokens",
        "leases",
        "occupancy",
        "outstanding_tokens",
        "ready",
        "token_ms",
        "utilization",
    )

    def __init__(self, target_id: str, inflight_max: int, now: float) -> None:
        self.id = target_id
        self.inflight_max = inflight_max
        self.bit = -1
        """Its number in the block index."""
        self.ready = True
        self.adapters: frozenset[str] = frozenset()
        """What its engine holds, by the engine's names."""
        self.inflight = 0
        """Slots: one for each choice of a request, so far as the target has as many."""
        self.leases = 0
        self.occupancy = Occupancy(inflight_max, now)
        self.outstanding_tokens = 0
        """Prompt tokens not yet computed and tokens that answers may still grow by."""
        self.backlog_tokens = 0
        """Uncached prompt tokens of leases without their first token."""
        self.held_tokens = 0
        """Context of every lease: its prompt and half of its likely answer."""
        self.decodes = 0
        """Answers past their first token, and the prompt tokens of those."""
        self.context_tokens = 0
        self.kv_tokens: int | None = None
        """Size of its KV cache; None: unknown."""
        self.kv_claimed = 0
        self._pins: dict[int, list[int]] = {}
        """Leases on a shared prefix, by its deepest key, and the prefix's tokens: claimed once."""
        self._report_at = _NEVER
        self._report_over = 0
        self._rate = 0.0
        self._rate_at = 0.0
        self._derived_at = _NEVER
        self.base_ms = 0.0
        """A first token of a prompt that is cached whole: one step, behind the backlog."""
        self.backlog_ms = 0.0
        self.token_ms = 0.0
        """One more uncached prompt token, its share of a chunk's step included."""
        self.utilization = 0.0
        """Share of the budget per output token that decoding and recent prefill use."""

    def slots_for(self, choices: int) -> int:
        """A request with more choices than the target has slots takes them all, and runs alone."""
        return min(choices, self.inflight_max)

    def has_slots(self, choices: int) -> bool:
        """An idle target has room for any request: see `slots_for`."""
        return not self.inflight or self.inflight + choices <= self.inflight_max

    def kv_free(self, now: float) -> int | None:
        """KV tokens that no lease claims; None: unknown."""
        if self.kv_tokens is None:
            return None
        over = self._report_over if now - self._report_at <= REPORT_S_MAX else 0
        return self.kv_tokens - self.kv_claimed - over

    def kv_need(self, claim: Claim) -> int:
        """KV tokens a request would add. A prefix that a running lease holds is there already."""
        shared = claim.pin is not None and claim.pin in self._pins
        return claim.kv_tokens if shared else claim.kv_tokens + claim.hit_tokens

    def reported(self, kv_used_tokens: int, kv_tokens: int, now: float) -> None:
        """The engine's own word: by how much its use exceeds our account, until the next one."""
        self.kv_tokens = kv_tokens
        self._report_over = max(0, kv_used_tokens - self.kv_claimed)
        self._report_at = now

    def takes_batch(self, utilization_max: float) -> bool:
        """It is idle, or so little used that batch work is in nobody's way.

        While a prompt is ahead there it takes none: prompts of batches in a row are what first
        tokens of others would wait for.
        """
        if not self.leases:
            return True
        busy = max(self.utilization, (self.inflight + 1) / self.inflight_max)
        return busy <= utilization_max and not self.backlog_tokens

    def derive(self, cost: EngineCost, tpot_ms: float, now: float) -> None:
        """Bring the derived values up to date."""
        if now - self._derived_at < STALE_S:
            return
        self._derived_at = now
        step_ms = cost.step_ms(self.decodes, self.context_tokens)
        self.token_ms = cost.b_ms + step_ms / cost.chunk
        self.backlog_ms = self.backlog_tokens * self.token_ms
        self.base_ms = step_ms + self.backlog_ms
        rate = self.prefill_rate(now)
        decode = cost.step_ms(self.inflight, self.held_tokens) / tpot_ms
        self.utilization = decode + cost.b_ms * rate

    def prefill_rate(self, now: float) -> float:
        """Uncached prompt tokens that it was sent per millisecond, of late."""
        return self._rate * math.exp((self._rate_at - now) / RATE_S)

    def changed(self) -> None:
        """The account, or what it is judged by, has changed."""
        self._derived_at = _NEVER

    def take(self, claim: Claim, slots: int, now: float) -> None:
        self.inflight += slots
        self.leases += 1
        self.outstanding_tokens += claim.tokens
        self.backlog_tokens += claim.miss_tokens
        self.held_tokens += claim.held_tokens
        self.kv_claimed += claim.kv_tokens
        if claim.pin is not None:
            pinned = self._pins.get(claim.pin)
            if pinned is None:
                self._pins[claim.pin] = [1, claim.hit_tokens]
                self.kv_claimed += claim.hit_tokens
            else:
                pinned[0] += 1
        self._rate = self.prefill_rate(now) + claim.miss_tokens / (RATE_S * 1e3)
        self._rate_at = now
        self._derived_at = _NEVER

    def first_token(self, claim: Claim, slots: int) -> None:
        self.outstanding_tokens -= claim.prompt_tokens
        self.backlog_tokens -= claim.miss_tokens
        self.decodes += slots
        self.context_tokens += claim.prompt_tokens * slots
        self._derived_at = _NEVER

    def give_back(self, claim: Claim, slots: int, *, had_first_token: bool) -> None:
        if had_first_token:
            self.outstanding_tokens -= claim.tokens - claim.prompt_tokens
            self.decodes -= slots
            self.context_tokens -= claim.prompt_tokens * slots
        else:
            self.outstanding_tokens -= claim.tokens
            self.backlog_tokens -= claim.miss_tokens
        self.inflight -= slots
        self.leases -= 1
        self.held_tokens -= claim.held_tokens
        self.kv_claimed -= claim.kv_tokens
        if claim.pin is not None:
            pinned = self._pins[claim.pin]
            pinned[0] -= 1
            if not pinned[0]:
                del self._pins[claim.pin]
                self.kv_claimed -= pinned[1]
        self._derived_at = _NEVER

    @property
    def at_rest(self) -> bool:
        """Nothing is counted on it any more: an idle target whose counts are not zero has lost."""
        counts = (
            self.inflight,
            self.leases,
            self.outstanding_tokens,
            self.backlog_tokens,
            self.held_tokens,
            self.decodes,
            self.context_tokens,
            self.kv_claimed,
            len(self._pins),
        )
        return not any(counts)
