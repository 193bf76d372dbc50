"""TokenBucket: what it holds, what it owes, and whether the waits it names are true."""

from __future__ import annotations

import math
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from inferd.quota.bucket import TokenBucket

rates = st.floats(0.001, 1e6)
bursts = st.integers(1, 10**9)
times = st.floats(0, 1e8)


@st.composite
def buckets(draw: st.DrawFn) -> TokenBucket:
    burst = draw(bursts)
    share = draw(st.floats(-1, 1))
    return TokenBucket(draw(rates), burst, share * burst, draw(times))


def test_a_new_bucket_is_full_and_says_so() -> None:
    bucket = TokenBucket.full(10, 100, now=5.0)
    assert bucket.balance_at(5.0) == 100
    assert bucket.time_until_full(5.0) == 0
    assert bucket.time_until(100, 5.0) == 0


def test_exactly_what_is_there_may_be_taken_and_not_one_more() -> None:
    bucket = TokenBucket.full(10, 100, now=0.0)
    assert bucket.reserve(100, 0.0)
    assert not bucket.reserve(1, 0.0)
    assert bucket.reserve(0, 0.0)


def test_a_refusal_costs_nothing() -> None:
    bucket = TokenBucket.full(10, 100, now=0.0)
    assert bucket.reserve(60, 0.0)
    assert not bucket.reserve(41, 0.0)
    assert bucket.reserve(40, 0.0)


def test_it_refills_with_time_up_to_the_burst() -> None:
    bucket = TokenBucket.full(10, 100, now=0.0)
    assert bucket.reserve(100, 0.0)
    assert bucket.balance_at(3.0) == 30
    assert bucket.balance_at(1_000_000.0) == 100


def test_time_that_runs_backwards_is_no_time() -> None:
    bucket = TokenBucket(10, 100, 0.0, stamp=50.0)
    assert bucket.balance_at(40.0) == 0
    bucket.refill(40.0)
    assert bucket.balance_at(51.0) == 10


def test_a_bill_above_its_reservation_leaves_a_debt_that_delays_the_next_one() -> None:
    bucket = TokenBucket.full(10, 100, now=0.0)
    assert bucket.reserve(100, 0.0)
    bucket.settle(100, 150, 0.0)
    assert bucket.balance_at(0.0) == -50
    assert not bucket.reserve(1, 5.0)
    assert bucket.time_until(10, 5.0) == pytest.approx(1.0, abs=1e-3)


def test_a_debt_is_never_more_than_one_burst() -> None:
    bucket = TokenBucket.full(10, 100, now=0.0)
    assert bucket.reserve(100, 0.0)
    bucket.settle(100, 1_000_000, 0.0)
    assert bucket.balance_at(0.0) == -100


def test_an_amount_above_the_burst_never_fits() -> None:
    assert TokenBucket.full(10, 100, 0.0).time_until(101, 0.0) == math.inf


@pytest.mark.parametrize("amount", [-1.0, math.nan])
def test_amounts_that_are_no_amounts_are_our_mistake(amount: float) -> None:
    bucket = TokenBucket.full(10, 100, 0.0)
    for call in (
        lambda: bucket.reserve(amount, 0.0),
        lambda: bucket.give_back(amount),
        lambda: bucket.settle(1, amount, 0.0),
    ):
        with pytest.raises(AssertionError):
            call()
    assert bucket.balance == 100


def test_new_limits_keep_a_full_bucket_full_an_empty_one_empty_and_a_debt_as_it_is() -> None:
    for balance, expected in ((100, 1000), (50, 500), (0, 0), (-40, -40)):
        bucket = TokenBucket(10, 100, balance, 0.0)
        bucket.update(20, 1000, 0.0)
        assert (bucket.balance, bucket.burst, bucket.rate_per_s) == (expected, 1000, 20)
    bucket = TokenBucket(10, 100, -80, 0.0)
    bucket.update(10, 30, 0.0)
    assert bucket.balance == -30


def test_new_limits_count_the_time_before_them_at_the_old_rate() -> None:
    bucket = TokenBucket(10, 100, 0, 0.0)
    bucket.update(1_000, 100, 5.0)
    assert bucket.balance == 50


@given(buckets(), st.data())
def test_the_balance_stays_within_minus_and_plus_burst(
    bucket: TokenBucket, data: st.DataObject
) -> None:
    now = bucket.stamp
    held: list[int] = []
    for _ in range(data.draw(st.integers(1, 20))):
        now += data.draw(st.floats(0, 1000))
        amount = data.draw(st.integers(0, 2 * 10**9))
        before = bucket.balance_at(now)
        steps: list[Callable[[], None]] = [
            lambda: _reserve(bucket, held, amount, now, before),  # noqa: B023 (called at once)
            lambda: bucket.settle(held.pop() if held else 0, amount, now),  # noqa: B023
            lambda: bucket.give_back(held.pop() if held else 0),
            lambda: bucket.update(data.draw(rates), data.draw(bursts), now),  # noqa: B023
        ]
        data.draw(st.sampled_from(steps))()
        assert -bucket.burst <= bucket.balance <= bucket.burst
        assert bucket.balance_at(now) <= bucket.burst


def _reserve(bucket: TokenBucket, held: list[int], amount: int, now: float, before: float) -> None:
    if bucket.reserve(amount, now):
        held.append(amount)
        assert bucket.balance >= 0
    else:
        assert bucket.balance == before


@given(buckets(), st.floats(0, 1), st.floats(0, 1e5))
@example(TokenBucket(0.001, 34_359_740, 0.0, 0.0), 0.5, 0.796875)  # a wait of 500 years
def test_waiting_as_long_as_told_is_enough_and_much_less_is_not(
    bucket: TokenBucket, share: float, idle_s: float
) -> None:
    now = bucket.stamp + idle_s
    amount = math.floor(share * bucket.burst)
    wait_s = bucket.time_until(amount, now)
    if wait_s > 0.001:
        early = TokenBucket(bucket.rate_per_s, bucket.burst, bucket.balance, bucket.stamp)
        assert not early.reserve(amount, now + wait_s * 0.999 - 0.001)
    assert bucket.reserve(amount, now + wait_s)


@given(buckets(), st.integers(0, 10**9), st.floats(0, 1e5), st.floats(0, 1e5))
def test_what_is_given_back_unused_leaves_no_trace(
    bucket: TokenBucket, amount: int, held_s: float, later_s: float
) -> None:
    """Refill and return commute: nobody is richer or poorer for having reserved in vain."""
    now = bucket.stamp
    untouched = TokenBucket(bucket.rate_per_s, bucket.burst, bucket.balance, now)
    if bucket.reserve(amount, now):
        bucket.refill(now + held_s)
        bucket.give_back(amount)
    end = now + held_s + later_s
    assert bucket.balance_at(end) <= untouched.balance_at(end) + 1e-6 * bucket.burst
    assert bucket.balance_at(end) >= untouched.balance_at(end) - 1e-6 * bucket.burst
