"""How long an engine's prefill step takes, fitted to a few of them, and what follows. Pure.

A step of `new` prompt tokens that end at position `total` costs a fixed part, a part for each new
token, and attention over all that stands before. On a CPU the last is computed for the whole
prompt in every step, so it grows with the square of `total`, however few the new tokens are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from inferd.config.starting_point import Pace

CHUNKS: Final = (64, 128, 256, 512)
CHUNK_STEP_S_MAX: Final = 0.5
"""A longer step beside running answers is felt as a stop."""
PROMPT_TOKENS: Final = 4_096
"""Up to here the target for the first token holds."""
MARGIN: Final = 1.25
_SCALE: Final = 1_000.0


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """One observed step."""

    new_tokens: int
    total_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds: of any step, for each 1,000 new tokens, and at a position of 1,000 (it squares)."""

    fixed_s: float
    new_s: float
    position_s: float

    def seconds(self, new_tokens: int, total_tokens: int) -> float:
        new, total = new_tokens / _SCALE, total_tokens / _SCALE
        return self.fixed_s + self.new_s * new + self.position_s * total * total

    def prompt_s(self, tokens: int, chunk_tokens: int) -> float:
        """Of a whole prompt, in steps of `chunk_tokens`."""
        ends = [*range(chunk_tokens, tokens, chunk_tokens), tokens]
        starts = [0, *ends[:-1]]
        return sum(self.seconds(end - start, end) for start, end in zip(starts, ends, strict=True))


@dataclass(frozen=True, slots=True)
class Measured:
    """`decode_1_s`, `decode_8_s`: a decode step with one stream and with eight."""

    decode_1_s: float
    decode_8_s: float
    prefill: StepCost
    prefill_tokens_per_s: float
    """Of a prompt of about 1,000 tokens in one step."""


def fit(steps: Sequence[PrefillStep]) -> StepCost:
    """Least squares of the relative errors, no part below zero. Needs three different steps."""
    rows = [
        tuple(part / step.seconds for part in (1.0, new, total * total))
        for step in steps
        for new, total in [(step.new_tokens / _SCALE, step.total_tokens / _SCALE)]
    ]
    used = [0, 1, 2]
    while True:
        parts = _solve([[row[column] for column in used] for row in rows])
        lowest = min(range(len(used)), key=parts.__getitem__)
        if parts[lowest] >= 0:
            found = dict(zip(used, parts, strict=True))
            return StepCost(*(found.get(column, 0.0) for column in range(3)))
        del used[lowest]


def _solve(rows: list[list[float]]) -> list[float]:
    """The x that brings every row . x nearest to 1: normal equations, by elimination."""
    size = len(rows[0])
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in range(size)] + [sum(row[i] for row in rows)]
        for i in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(matrix[row][column]))
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for row in range(size):
            if row != column:
                factor = matrix[row][column] / matrix[column][column]
                matrix[row] = [
                    a - factor * b for a, b in zip(matrix[row], matrix[column], strict=True)
                ]
    return [matrix[row][size] / matrix[row][row] for row in range(size)]


def pace(measured: Measured, context_tokens_max: int, measured_on: str) -> Pace:
    """The chunk size and the targets that a model with these costs can meet.

    The chunk is the largest whose step stays within half a second. A token may take a decode step
    of eight streams and one chunk; the first one a long prompt and one such step; a quarter more.
    """
    prefill = measured.prefill
    quick = [chunk for chunk in CHUNKS if prefill.seconds(chunk, chunk) <= CHUNK_STEP_S_MAX]
    chunk = max(quick, default=CHUNKS[0])
    chunk_s = prefill.seconds(chunk, chunk)
    mixed_s = measured.decode_8_s + chunk_s
    prompt = min(PROMPT_TOKENS, context_tokens_max)
    prompt_s = prefill.prompt_s(prompt, chunk)
    source = (
        f"Measured here on {measured_on}: a decode step takes {_ms(measured.decode_1_s)} with 1"
        f" stream, {_ms(measured.decode_8_s)} with 8;\n"
        f"a prefill step of {chunk} tokens {_ms(chunk_s)}; some 1,000 tokens in one step"
        f" {measured.prefill_tokens_per_s:,.0f} tokens/s;\n"
        f"a prompt of {prompt:,} tokens in steps of {chunk} about {prompt_s:,.1f} s. The targets"
        " are what that\nadds up to, and a quarter."
    )
    return Pace(
        chunk_tokens=chunk,
        ttft_ms=_rounded_up_ms((prompt_s + mixed_s) * MARGIN, 100),
        tpot_ms=_rounded_up_ms(mixed_s * MARGIN, 10),
        source=tuple(source.splitlines()),
    )


def _rounded_up_ms(seconds: float, step_ms: int) -> int:
    return math.ceil(seconds * 1_000 / step_ms) * step_ms


def _ms(seconds: float) -> str:
    return f"{seconds * 1_000:,.0f} ms"
