"""Which target takes a request: policies are pure, they get candidates and return a choice.

Every candidate has room, is ready and is allowed. The reason of a choice is a metric label and
part of the ledger row, so that operators see why traffic went where it went.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from inferd.routing.load import Target

SLOT_TOKENS = 64
"""What a slot in flight weighs beside its tokens: a step is paid for each running sequence however
short its answer, so a flood of tiny requests must not look free next to one long answer."""


class Reason(StrEnum):
    """Why a target was chosen."""

    ONLY_CHOICE = "only_choice"  # no other target had room
    LEAST_LOADED = "least_loaded"
    TIE = "tie"  # several carried the same: chance decided


class Placement(NamedTuple):
    """A choice and its reason."""

    target: Target
    reason: Reason


class LeastTokens:
    """Least outstanding tokens; then fewest slots in flight; then chance, so idle targets share."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, candidates: Sequence[Target]) -> Placement:
        """Choose one; there is at least one."""
        if len(candidates) == 1:
            return Placement(candidates[0], Reason.ONLY_CHOICE)
        best: list[Target] = []
        least_load = least_inflight = math.inf
        for target in candidates:  # one plain loop: it runs for every request
            inflight = target.inflight
            load = target.outstanding_tokens + SLOT_TOKENS * inflight
            if load < least_load or (load == least_load and inflight < least_inflight):
                least_load, least_inflight = load, inflight
                best = [target]
            elif load == least_load and inflight == least_inflight:
                best.append(target)
        if len(best) == 1:
            return Placement(best[0], Reason.LEAST_LOADED)
        return Placement(self._rng.choice(best), Reason.TIE)
