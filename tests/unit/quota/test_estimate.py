"""Estimator: starts sensibly, learns what the engine counts, and cannot be led astray."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inferd.quota.estimate import (
    BYTES_PER_TOKEN_MAX,
    BYTES_PER_TOKEN_MIN,
    BYTES_PER_TOKEN_START,
    MODELS_MAX,
    Estimator,
)


def test_an_unknown_model_is_estimated_at_the_start_ratio_rounded_up() -> None:
    estimator = Estimator()
    assert estimator.estimate("m", 350) == 100
    assert estimator.estimate("m", 351) == 101
    assert estimator.estimate("m", 0) == 1


def test_it_comes_to_what_the_engine_counts() -> None:
    estimator = Estimator()
    for _ in range(100):
        estimator.learn("m", prompt_bytes=5_000, prompt_tokens=1_000)
    assert estimator.estimate("m", 5_000) == pytest.approx(1_000, rel=0.01)


def test_models_learn_apart() -> None:
    estimator = Estimator()
    estimator.learn("m", 5_000, 1_000)
    assert estimator.bytes_per_token("other") == pytest.approx(BYTES_PER_TOKEN_START)


def test_a_short_prompt_full_of_template_moves_it_less_than_a_long_one() -> None:
    short, long = Estimator(), Estimator()
    short.learn("m", prompt_bytes=10, prompt_tokens=20)
    long.learn("m", prompt_bytes=1_000, prompt_tokens=2_000)
    assert long.estimate("m", 10_000) > short.estimate("m", 10_000) > 2_857


def test_counts_that_say_nothing_are_left_out() -> None:
    estimator = Estimator()
    for prompt_bytes, prompt_tokens in ((0, 10), (10, 0), (-1, 5), (5, -1)):
        estimator.learn("m", prompt_bytes, prompt_tokens)
    assert estimator.bytes_per_token("m") == pytest.approx(BYTES_PER_TOKEN_START)


def test_it_remembers_a_bounded_number_of_models() -> None:
    estimator = Estimator()
    for number in range(MODELS_MAX + 1):
        estimator.learn(f"m{number}", 5_000, 1_000)
    assert estimator.bytes_per_token("m0") == pytest.approx(BYTES_PER_TOKEN_START)
    assert estimator.bytes_per_token(f"m{MODELS_MAX}") > BYTES_PER_TOKEN_START


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)), max_size=300))
def test_whatever_is_reported_the_ratio_stays_within_its_bounds(
    reports: list[tuple[int, int]],
) -> None:
    estimator = Estimator()
    for prompt_bytes, prompt_tokens in reports:
        estimator.learn("m", prompt_bytes, prompt_tokens)
    ratio = estimator.bytes_per_token("m")
    assert BYTES_PER_TOKEN_MIN - 1e-9 <= ratio <= BYTES_PER_TOKEN_MAX + 1e-9


@given(st.integers(0, 10**7), st.integers(0, 10**7))
def test_a_longer_prompt_is_never_estimated_shorter(one: int, two: int) -> None:
    estimator = Estimator()
    low, high = sorted((one, two))
    assert 1 <= estimator.estimate("m", low) <= estimator.estimate("m", high)
