"""Prompt tokens estimated from prompt bytes, by a ratio learnt per model from the engine's counts.

Owns the ratios. They are kept as tokens per byte, in which the estimate is linear, so that the mean
of many samples is unbiased. A short prompt says little (its chat template weighs more than its
text) and moves the ratio little. Every ratio stays within its bounds whatever is reported.
"""

from __future__ import annotations

import math

BYTES_PER_TOKEN_START = 3.5
BYTES_PER_TOKEN_MIN = 0.5
BYTES_PER_TOKEN_MAX = 16.0
MODELS_MAX = 1_024
"""Ratios kept; the oldest is forgotten when a reload-happy config has brought more."""

_WEIGHT = 0.1  # of one full sample
_FULL_SAMPLE_TOKENS = 256


class Estimator:
    """`model` is always a name from the config (a pool or public name), never a client's text."""

    def __init__(self) -> None:
        self._tokens_per_byte: dict[str, float] = {}

    def bytes_per_token(self, model: str) -> float:
        return 1.0 / self._tokens_per_byte.get(model, 1.0 / BYTES_PER_TOKEN_START)

    def estimate(self, model: str, prompt_bytes: int) -> int:
        """Tokens of a prompt of so many UTF-8 bytes, rounded up, at least 1."""
        ratio = self._tokens_per_byte.get(model, 1.0 / BYTES_PER_TOKEN_START)
        return max(1, math.ceil(prompt_bytes * ratio))

    def learn(self, model: str, prompt_bytes: int, prompt_tokens: int) -> None:
        """Take in what the engine counted. Empty prompts and counts of zero say nothing."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        ratios = self._tokens_per_byte
        ratio = ratios.get(model)
        if ratio is None:
            ratio = 1.0 / BYTES_PER_TOKEN_START
            if len(ratios) >= MODELS_MAX:
                del ratios[next(iter(ratios))]
        sample = prompt_tokens / prompt_bytes
        sample = min(1.0 / BYTES_PER_TOKEN_MIN, max(1.0 / BYTES_PER_TOKEN_MAX, sample))
        weight = _WEIGHT * min(1.0, prompt_tokens / _FULL_SAMPLE_TOKENS)
        ratios[model] = ratio + weight * (sample - ratio)
