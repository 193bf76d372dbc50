"""Step costs. Goal: a known cost is found again, and chunk and targets follow from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.capacity.step_cost import Measured, PrefillStep, StepCost, fit, pace

SIZES = [(64, 64), (128, 128), (256, 256), (512, 512), (1_000, 1_000), (64, 1_064), (64, 2_064)]
SLOW = StepCost(fixed_s=0.05, new_s=1.3, position_s=0.65)


def steps_of(cost: StepCost) -> list[PrefillStep]:
    return [PrefillStep(new, total, cost.seconds(new, total)) for new, total in SIZES]


@given(
    st.builds(
        StepCost,
        fixed_s=st.floats(0.001, 1),
        new_s=st.floats(0.001, 10),
        position_s=st.floats(0.001, 10),
    )
)
def test_a_known_cost_is_found_again(cost: StepCost) -> None:
    found = fit(steps_of(cost))
    for new, total in (*SIZES, (256, 4_096)):
        assert found.seconds(new, total) == pytest.approx(cost.seconds(new, total), rel=1e-3)


@given(st.lists(st.floats(0.01, 10), min_size=len(SIZES), max_size=len(SIZES)))
def test_no_part_of_a_cost_is_below_zero_whatever_was_seen(seconds: list[float]) -> None:
    found = fit([PrefillStep(n, t, s) for (n, t), s in zip(SIZES, seconds, strict=True)])
    assert min(found.fixed_s, found.new_s, found.position_s) >= 0
    assert found.seconds(64, 64) > 0


@given(st.integers(1, 5_000), st.sampled_from([64, 128, 256, 512]))
def test_a_prompt_is_read_in_chunks_that_add_up(tokens: int, chunk: int) -> None:
    counted = StepCost(fixed_s=1.0, new_s=0.0, position_s=0.0)
    assert counted.prompt_s(tokens, chunk) == -(-tokens // chunk)
    by_token = StepCost(fixed_s=0.0, new_s=1_000.0, position_s=0.0)
    assert by_token.prompt_s(tokens, chunk) == pytest.approx(tokens)


def measured(cost: StepCost) -> Measured:
    return Measured(decode_1_s=0.04, decode_8_s=0.1, prefill=cost, prefill_tokens_per_s=440)


@pytest.mark.parametrize(
    ("cost", "chunk"),
    [
        (StepCost(fixed_s=0.01, new_s=0.1, position_s=0.0), 512),
        (SLOW, 256),
        (StepCost(fixed_s=0.2, new_s=2.0, position_s=0.0), 128),
        (StepCost(fixed_s=0.4, new_s=1.0, position_s=0.0), 64),
        (StepCost(fixed_s=2.0, new_s=1.0, position_s=0.0), 64),
    ],
)
def test_the_chunk_is_the_largest_whose_step_stays_within_half_a_second(
    cost: StepCost, chunk: int
) -> None:
    assert pace(measured(cost), 4_096, "2026-11-30").chunk_tokens == chunk


def test_targets_are_what_it_takes_and_a_quarter_rounded_up() -> None:
    cost = StepCost(fixed_s=0.102, new_s=1.0, position_s=0.0)
    found = pace(measured(cost), 4_096, "2026-11-30")
    chunk_s = 0.102 + 0.256
    assert found.tpot_ms == 580  # (0.1 + 0.358) x 1.25 = 0.5725
    assert found.ttft_ms == pytest.approx(1_250 * (16 * chunk_s + 0.1 + chunk_s), abs=100)
    assert found.ttft_ms % 100 == 0
    assert found.tpot_ms % 10 == 0


def test_a_short_context_has_a_shorter_longest_prompt() -> None:
    short, long = (pace(measured(SLOW), context, "2026-11-30") for context in (1_024, 32_768))
    assert short.ttft_ms < long.ttft_ms
    assert long.ttft_ms == pace(measured(SLOW), 4_096, "2026-11-30").ttft_ms


def test_the_figures_are_told_in_comments() -> None:
    told = "\n".join(pace(measured(SLOW), 4_096, "2026-11-30").source)
    assert "Measured here on 2026-11-30" in told
    assert "40 ms with 1 stream, 100 ms with 8" in told
    assert "440 tokens/s" in told
    assert "a prompt of 4,096 tokens in steps of 256" in told
    assert all(len(line) <= 98 for line in told.splitlines())
