"""LeastTokens: the least loaded takes the next one, and the idle share."""

from __future__ import annotations

import random
from collections import Counter

import hypothesis.strategies as st
from hypothesis import given

from inferd.routing.claim import Asked
from inferd.routing.placement import SLOT_TOKENS, LeastTokens, Placement, Reason
from inferd.routing.target import Target

ASKED = Asked(100, 100)


def target(name: str, tokens: int = 0, inflight: int = 0) -> Target:
    made = Target(name, 1_000, 0.0)
    made.outstanding_tokens = tokens
    made.inflight = inflight
    return made


def test_the_one_with_fewer_outstanding_tokens_is_chosen(rng: random.Random) -> None:
    targets = [target("a", 5_000, 1), target("b", 4_000, 1), target("c", 9_000, 1)]
    assert LeastTokens(rng).choose(ASKED, targets, 0.0) == Placement(
        targets[1], Reason.LEAST_LOADED
    )


def test_a_single_candidate_is_no_choice(rng: random.Random) -> None:
    only = target("a", 5_000, 1)
    assert LeastTokens(rng).choose(ASKED, [only], 0.0) == Placement(only, Reason.ONLY_CHOICE)


def test_equal_loads_are_told_apart_by_requests_in_flight(rng: random.Random) -> None:
    one_long = target("a", 10 * SLOT_TOKENS, 1)
    two_short = target("b", 9 * SLOT_TOKENS, 2)
    assert LeastTokens(rng).choose(ASKED, [two_short, one_long], 0.0).target is one_long


def test_idle_targets_share(rng: random.Random) -> None:
    policy = LeastTokens(rng)
    targets = [target(name) for name in "abcd"]
    chosen = Counter(policy.choose(ASKED, targets, 0.0).target.id for _ in range(4_000))
    assert max(chosen.values()) / min(chosen.values()) < 1.3
    assert policy.choose(ASKED, targets, 0.0).reason is Reason.TIE


def test_requests_for_one_token_do_not_look_free(rng: random.Random) -> None:
    """One long answer runs on `a`; a flood of tiny requests must not all end up on `b`."""
    policy = LeastTokens(rng)
    targets = [target("a", 3_000, 1), target("b")]
    for _ in range(200):
        chosen = policy.choose(ASKED, targets, 0.0).target
        chosen.outstanding_tokens += 2
        chosen.inflight += 1
    assert targets[0].inflight > 50
    assert targets[1].inflight > 50


def test_many_requests_that_stay_spread_evenly(rng: random.Random) -> None:
    policy = LeastTokens(rng)
    targets = [target(str(number)) for number in range(8)]
    for _ in range(400):
        chosen = policy.choose(ASKED, targets, 0.0).target
        chosen.outstanding_tokens += rng.randrange(50, 4_000)
        chosen.inflight += 1
    loads = [one.outstanding_tokens for one in targets]
    assert max(loads) / (sum(loads) / 8) <= 1.1


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 500)), min_size=1, max_size=16))
def test_nobody_with_less_of_both_is_passed_over(loads: list[tuple[int, int]]) -> None:
    targets = [target(str(number), *load) for number, load in enumerate(loads)]
    chosen = LeastTokens(random.Random(0)).choose(ASKED, targets, 0.0).target
    for other in targets:
        assert not (
            other.outstanding_tokens < chosen.outstanding_tokens
            and other.inflight < chosen.inflight
        )
