"""The cost model: its fits, and slopes that find an engine other than the one first thought of."""

from __future__ import annotations

import random

import pytest

from inferd.routing.cost_model import (
    CPU_DEMO,
    H100_8B,
    H100_70B_TP8,
    EngineCost,
    Slopes,
    engine_cost,
)


@pytest.mark.parametrize(
    ("cost", "running", "measured_ms"),
    [(H100_8B, 64, 12.6), (H100_8B, 256, 31.4), (H100_70B_TP8, 1, 9.4), (H100_70B_TP8, 256, 24.1)],
)
def test_a_decode_step_is_as_measured(cost: EngineCost, running: int, measured_ms: float) -> None:
    assert cost.step_ms(running, running * 2_048) == pytest.approx(measured_ms, rel=0.1)


def test_an_engine_is_told_by_its_device_and_size() -> None:
    assert engine_cost("cpu", 1, None) is CPU_DEMO
    assert engine_cost("cuda", 8, None) is H100_70B_TP8
    assert engine_cost("cuda", 1, 2_048).chunk == 2_048


def test_slopes_find_a_slower_engine(rng: random.Random) -> None:
    slopes = Slopes()
    for _ in range(300):
        noise = rng.uniform(0.9, 1.1)
        slopes.answer_took(3.0 * 12.0 * noise, 12.0, 0.0)
        slopes.prompt_took((3.0 * 20.0 + 2.0 * 80.0) * noise, 20.0, 80.0)
    assert slopes.step == pytest.approx(3.0, rel=0.1)
    assert slopes.prefill == pytest.approx(2.0, rel=0.15)


def test_no_observation_moves_them_far_or_out_of_bounds() -> None:
    slopes = Slopes()
    slopes.answer_took(1e9, 10.0, 0.0)
    assert slopes.step < 1.2
    for _ in range(10_000):
        slopes.prompt_took(0.0, 10.0, 10.0)
        slopes.answer_took(1e9, 10.0, 0.0)
    assert 0.01 < slopes.prefill < slopes.step <= 50
