"""What a batch beside interactive traffic gets, and what that does to the others. Pure."""

from __future__ import annotations

from typing import NamedTuple

from inferd.capacity.simulate import Run, figures


class BatchEffect(NamedTuple):
    """What a batch got of what was free for it, and what that did to the others, as shares."""

    filled: float
    ttft_p95_moved: float
    tpot_p95_moved: float


def batch_effect(alone: Run, beside: Run) -> BatchEffect:
    """Of the same scenario without and with a batch."""
    before, after = figures(alone), figures(beside)

    def moved(key: str) -> float:
        return after[key] / before[key] - 1 if before[key] else 0.0

    filled = 1 - beside.free / alone.free if alone.free else 1.0
    return BatchEffect(filled, moved("ttft_p95"), moved("tpot_p95"))
