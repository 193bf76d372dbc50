"""The highest value at which something holds, found by trying. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

TRIES_MAX: Final = 24


def highest(
    holds: Callable[[float], bool],
    start: float,
    *,
    step: float = 1.25,
    precision: float = 1.05,
    most: float = float("inf"),
) -> float:
    """The highest value found that holds, within a factor `precision` of one that does not.

    Goes up (or down) from `start` by `step`, then halves what is left. `most` is never passed, and
    held it is the answer. What fails is tried once more before it is believed: a machine that
    others use as well has bad moments. 0 if nothing holds within `TRIES_MAX` tries.
    """
    low, high = 0.0, float("inf")
    value = min(start, most)
    for _ in range(TRIES_MAX):
        if holds(value) or holds(value):
            low = value
        else:
            high = value
        if low >= most or (low and high / low <= precision):
            break
        if not low:
            value = high / step
        elif high == float("inf"):
            value = min(low * step, most)
        else:
            value = (low * high) ** 0.5
    return low
