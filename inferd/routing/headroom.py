"""Who decodes in a split pool: the target with most room for the answer's KV cache. Pure.

Prompts are computed elsewhere, so what counts here is how much of the cache is free and how many
answers share a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from inferd.routing.claim import Asked
from inferd.routing.placement import SLOT_TOKENS, Placement, Reason, Wait
from inferd.routing.target import Target


class Headroom:
    """Most free KV tokens, less what its answers in flight weigh; unknown caches by load alone."""

    def choose(self, asked: Asked, targets: Sequence[Target], now: float) -> Placement:
        best: Target | None = None
        most = -math.inf
        for target in targets:
            if not target.has_slots(asked.choices):
                continue
            free = target.kv_free(now)
            claim = asked.claim(target.bit)
            if free is not None and target.leases and target.kv_need(claim) > free:
                continue
            room = free if free is not None else -target.outstanding_tokens
            room -= SLOT_TOKENS * target.inflight
            if room > most:
                best, most = target, room
        if best is None:
            roomiest = max(targets, key=lambda target: target.inflight_max - target.inflight)
            return Placement(roomiest, Reason.ONLY_CHOICE, None, Wait.ROOM)
        reason = Reason.ONLY_CHOICE if len(targets) == 1 else Reason.LEAST_LOADED
        return Placement(best, reason)

    def takes(self, target: Target) -> bool:
        return target.ready and target.inflight < target.inflight_max
