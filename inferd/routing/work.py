"""How long the work that a target has should take it, by the cost model. Pure.

For whoever must tell a long prompt from a hang: never too little, so prompts count as one long one
as far as a prompt can be long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from inferd.routing.cost_model import EngineCost
from inferd.routing.target import Target

PROMPT_TOKENS_MAX: Final = 131_072
"""Longer ones are rare: what waits beyond is taken for several prompts."""


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds.

    `backlog_s`: all prompts without a first token; `again_s`: those of all that runs, computed
    once more; `step_s`: one step of what runs.
    """

    backlog_s: float = 0.0
    again_s: float = 0.0
    step_s: float = 0.0


NO_WORK: Final = Work()


def work_of(target: Target, cost: EngineCost) -> Work:
    """Of one target, by its pool's cost as it was learnt."""
    return Work(
        backlog_s=_prefill_s(target.backlog_tokens, cost),
        again_s=_prefill_s(target.context_tokens, cost),
        step_s=cost.step_ms(max(target.inflight, 1), target.held_tokens) / 1e3,
    )


def _prefill_s(tokens: int, cost: EngineCost) -> float:
    """Of so many prompt tokens that nobody holds."""
    if not tokens:
        return 0.0
    longest = min(tokens, PROMPT_TOKENS_MAX)
    return cost.alone_ms(longest) * tokens / longest / 1e3
