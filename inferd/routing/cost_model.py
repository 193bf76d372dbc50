"""What one step of an engine costs, in milliseconds, and how that is learnt. Pure.

    step = a + b * new tokens + c * running answers + d * their context / 1e3 + e * attention / 1e6

The constants are fits of kernel timings (H100) or of a measured engine (CPU). `Slopes` scales the
step's part and the prefill's part of them to the first tokens that were really seen, so a wrong
start costs little and only for a while.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

SCALE_MIN: Final = 0.02
SCALE_MAX: Final = 50.0
OUTLIER: Final = 4.0
"""An observation further off than this factor counts as if it were this far off."""
LEARN: Final = 0.03
"""Weight of one observation: about the last thirty count."""
OUTPUT_WEIGHT_MIN: Final = 0.25
OUTPUT_WEIGHT_MAX: Final = 40.0


@dataclass(frozen=True, slots=True)
class EngineCost:
    """`chunk`: prefill tokens of one step. All coefficients as in the module's formula."""

    a_ms: float
    b_ms: float
    c_ms: float
    d_ms: float
    e_ms: float
    chunk: int

    def step_ms(self, sequences: int, context_tokens: float) -> float:
        """A step that only decodes."""
        return self.a_ms + self.c_ms * sequences + self.d_ms * context_tokens / 1e3

    def prefill_ms(self, new_tokens: int, cached_tokens: int) -> float:
        """What a prompt's own tokens add to the steps they are computed in."""
        positions = new_tokens * (cached_tokens + new_tokens / 2) / 1e6
        return self.b_ms * new_tokens + self.e_ms * positions

    def alone_ms(self, new_tokens: int, cached_tokens: int = 0) -> float:
        """The first token of a prompt on an idle engine."""
        steps = 1 + new_tokens / self.chunk
        return self.a_ms * steps + self.prefill_ms(new_tokens, cached_tokens)

    def output_weight(self, context_tokens: int) -> float:
        """What a generated token costs beside an uncached prompt token."""
        weight = (self.c_ms + self.d_ms * context_tokens / 1e3) / self.b_ms
        if weight < OUTPUT_WEIGHT_MIN:
            return OUTPUT_WEIGHT_MIN
        if weight > OUTPUT_WEIGHT_MAX:
            return OUTPUT_WEIGHT_MAX
        return weight

    def scaled(self, step: float, prefill: float) -> EngineCost:
        return replace(
            self,
            a_ms=self.a_ms * step,
            b_ms=self.b_ms * prefill,
            c_ms=self.c_ms * step,
            d_ms=self.d_ms * step,
            e_ms=self.e_ms * prefill,
        )


H100_8B: Final = EngineCost(6.60, 0.0191, 0.0082, 0.04176, 1.335, 1_024)
"""An 8B model on one H100, bf16."""
H100_70B_TP8: Final = EngineCost(9.63, 0.0422, 0.0286, 0.01378, 0.273, 512)
"""A 70B model on eight H100, bf16."""
LARGE_TENSOR_PARALLEL: Final = 4
CPU_DEMO: Final = EngineCost(37.0, 1.0, 5.3, 1.0, 100.0, 512)
"""The demo model on two CPU cores: 27 tokens/s on one stream, 108 on eight; prompts at 1,000/s."""


def engine_cost(device: str, tensor_parallel: int, chunk_tokens: int | None) -> EngineCost:
    """Where to start for an engine: what is nearest among those measured, with its own chunk."""
    on_gpus = H100_70B_TP8 if tensor_parallel >= LARGE_TENSOR_PARALLEL else H100_8B
    cost = CPU_DEMO if device == "cpu" else on_gpus
    return replace(cost, chunk=chunk_tokens) if chunk_tokens else cost


class Slopes:
    """Scales of a start's step part and prefill part, each learnt from what shows it alone.

    The time per token of answers says what a step costs, the first tokens of prompts that nothing
    was ahead of say what a prompt token costs. Fitted together the two could not be told apart.
    """

    __slots__ = ("prefill", "step")

    def __init__(self) -> None:
        self.step = 1.0
        self.prefill = 1.0

    def answer_took(self, tpot_ms: float, step_ms: float, prefill_share: float) -> None:
        """An answer took `tpot_ms` per token where a step was thought to take `step_ms`.

        `prefill_share`: of that time, what prefill of other prompts took.
        """
        if tpot_ms > 0.0 and step_ms > 0.0:
            self.step = _towards(self.step, tpot_ms * (1.0 - prefill_share) / step_ms)

    def prompt_took(self, ttft_ms: float, steps_ms: float, prefill_ms: float) -> None:
        """A first token took `ttft_ms` where these two parts were predicted, unscaled."""
        left_ms = ttft_ms - self.step * steps_ms
        if prefill_ms > 0.0:
            self.prefill = _towards(self.prefill, left_ms / prefill_ms)

    def start(self, step: float, prefill: float) -> None:
        """Begin again from a measurement, such as a warm-up's."""
        self.step, self.prefill = _bounded(step), _bounded(prefill)


def _towards(scale: float, seen: float) -> float:
    seen = min(OUTLIER * scale, max(scale / OUTLIER, seen))
    return _bounded(scale + LEARN * (seen - scale))


def _bounded(scale: float) -> float:
    return min(SCALE_MAX, max(SCALE_MIN, scale))
