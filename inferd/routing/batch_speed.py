"""How fast a pool gets through batch work in what is left free. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from inferd.routing.account import Account

STEPS: Final = 12
"""Halvings in the search for how many answers fit below the threshold."""


@dataclass(frozen=True, slots=True)
class BatchSpeed:
    """Of a whole pool: milliseconds of a prompt token and of a token of an answer."""

    prompt_ms: float
    output_ms: float
    answer_tokens: int

    def seconds(self, prompt_tokens: int, output_tokens: int) -> float:
        return (prompt_tokens * self.prompt_ms + output_tokens * self.output_ms) / 1e3


def batch_speed(account: Account, prompt_tokens: int) -> BatchSpeed | None:
    """With prompts of so many tokens, at the load there is now. None: no target takes anything."""
    targets = [target for target in account.load.targets if target.ready]
    if not targets:
        return None
    conditions, limit = account.conditions, account.serving.batch_utilization_max
    cost, tpot_ms = conditions.cost, conditions.tpot_ms
    context = prompt_tokens + account.answer_tokens / 2
    per_prompt = per_output = 0.0
    for target in targets:
        busy = min(target.utilization, 1.0)
        free = max(limit - busy, 0.02)
        low, high = 1, max(1, int(limit * target.inflight_max))
        for _ in range(STEPS):
            middle = (low + high + 1) // 2
            if cost.step_ms(middle, middle * context) <= limit * tpot_ms:
                low = middle
            else:
                high = middle - 1
            if low >= high:
                break
        step_ms = cost.step_ms(low, low * context)
        share = free / limit
        per_prompt += share / (cost.b_ms + cost.a_ms / cost.chunk)
        per_output += share * low / step_ms
    return BatchSpeed(1 / per_prompt, 1 / per_output, account.answer_tokens)
