"""How long one scheduler step takes: a linear cost model per model size.

step_ms = a + b*P + c*B + d*S/1000 + e*A/1e6, with P prefill tokens in the step, B running decodes,
S the sum of their contexts in tokens, A the sum over chunks of chunk tokens x mean position.
`8b` and `70b` are fitted to H100 kernel timings (70b: eight GPUs); `cpu` to a two-core machine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """Coefficients in milliseconds; see the module's formula."""

    name: str
    base: float
    prefill_token: float
    sequence: float
    context_kilotoken: float
    quadratic: float

    def step_s(self, prefill: int, decodes: int, contexts: int, positions: float) -> float:
        """Seconds of one step at speed 1."""
        return (
            self.base
            + self.prefill_token * prefill
            + self.sequence * decodes
            + self.context_kilotoken * contexts / 1_000
            + self.quadratic * positions / 1_000_000
        ) / 1_000


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("8b", 6.60, 0.0191, 0.0082, 0.0418, 1.335),
        Profile("70b", 9.63, 0.0422, 0.0286, 0.0138, 0.273),
        Profile("cpu", 34.0, 1.10, 3.0, 2.0, 150.0),
    )
}
