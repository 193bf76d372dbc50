"""Buckets: both or none, refusals that cost nothing, and nothing left outstanding."""

from __future__ import annotations

import math
import random
import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inferd.config.schema import Team
from inferd.errors import InvalidField, InvalidKey, RateLimited
from inferd.quota.buckets import Buckets, Reservation, TeamState, duration

LIMITED = Team(
    name="search", tokens_per_s=10, burst_tokens=1_000, requests_per_s=1.0, burst_requests=10
)
FREE = Team(name="lab")


def state(buckets: Buckets, now: float = 0.0, team: str = "search") -> TeamState:
    return next(one for one in buckets.snapshot(now) if one.team == team)


def balances(buckets: Buckets, now: float = 0.0) -> tuple[float, float]:
    team = state(buckets, now)
    assert team.tokens is not None
    assert team.requests is not None
    return team.tokens.balance, team.requests.balance


def test_of_twenty_requests_at_once_exactly_as_many_are_let_in_as_fit() -> None:
    buckets = Buckets([LIMITED], 0.0)
    admitted: list[Reservation] = []
    for _ in range(20):
        try:
            admitted.append(buckets.reserve("search", 300, 0.0))
        except RateLimited:
            continue
    assert len(admitted) == 3
    assert state(buckets).outstanding_tokens == 900
    assert balances(buckets) == (100, 7)


def test_a_settled_reservation_costs_what_was_used_and_a_request() -> None:
    buckets = Buckets([LIMITED], 0.0)
    with buckets.reserve("search", 500, 0.0) as reservation:
        reservation.settle(120, 0.0)
    assert balances(buckets) == (880, 9)
    assert not reservation.is_open


def test_leaving_the_scope_unsettled_returns_everything() -> None:
    buckets = Buckets([LIMITED], 0.0)
    with pytest.raises(LookupError), buckets.reserve("search", 500, 0.0):
        raise LookupError
    assert balances(buckets) == (1000, 10)
    assert state(buckets).outstanding_tokens == state(buckets).outstanding_requests == 0


def test_a_detached_reservation_stays_open_until_its_late_bill() -> None:
    buckets = Buckets([LIMITED], 0.0)
    with buckets.reserve("search", 500, 0.0) as reservation:
        reservation.detach()
    assert state(buckets).outstanding_tokens == 500
    reservation.settle(40, 0.0)
    assert balances(buckets) == (960, 9)
    assert state(buckets).outstanding_tokens == 0


def test_only_the_first_of_settle_and_release_counts() -> None:
    buckets = Buckets([LIMITED], 0.0)
    with buckets.reserve("search", 500, 0.0) as reservation:
        reservation.settle(100, 0.0)
        reservation.settle(400, 0.0)
        reservation.release()
    assert balances(buckets) == (900, 9)
    with buckets.reserve("search", 500, 0.0) as reservation:
        reservation.release()
        reservation.settle(400, 0.0)
    assert balances(buckets) == (900, 9)
    assert state(buckets).outstanding_requests == 0


def test_more_than_the_burst_is_a_client_error_and_costs_nothing() -> None:
    buckets = Buckets([LIMITED], 0.0)
    with pytest.raises(InvalidField, match=r"max_completion_tokens.*1001 tokens.*1000") as refused:
        buckets.reserve("search", 1_001, 0.0)
    assert (refused.value.status, refused.value.code) == (400, "invalid_value")
    assert refused.value.param == "max_completion_tokens"
    assert balances(buckets) == (1000, 10)


def test_the_named_wait_is_true_for_tokens() -> None:
    buckets = Buckets([LIMITED], 0.0)
    buckets.reserve("search", 1_000, 0.0).settle(1_000, 0.0)
    with pytest.raises(RateLimited, match=r"`search`.*tokens.*0 left, 200 needed") as refused:
        buckets.reserve("search", 200, 0.0)
    assert refused.value.limit == "tokens"
    wait_s = refused.value.retry_after_s or 0.0
    assert wait_s == pytest.approx(20.0, abs=1e-3)
    with pytest.raises(RateLimited):
        buckets.reserve("search", 200, wait_s - 0.01)
    buckets.reserve("search", 200, wait_s).release()


def test_the_named_wait_is_the_longer_one_of_both_buckets() -> None:
    buckets = Buckets([LIMITED], 0.0)
    for _ in range(10):
        buckets.reserve("search", 1, 0.0).settle(100, 0.0)
    with pytest.raises(RateLimited) as refused:
        buckets.reserve("search", 5, 0.0)
    assert refused.value.limit == "requests"
    assert refused.value.retry_after_s == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(RateLimited) as refused:
        buckets.reserve("search", 50, 0.0)
    assert refused.value.limit == "tokens"
    assert refused.value.retry_after_s == pytest.approx(5.0, abs=1e-3)


def test_a_refusal_by_one_bucket_takes_nothing_from_the_other() -> None:
    buckets = Buckets([LIMITED], 0.0)
    for _ in range(10):
        buckets.reserve("search", 1, 0.0).settle(1, 0.0)
    tokens, requests = balances(buckets)
    for _ in range(100):
        with pytest.raises(RateLimited):
            buckets.reserve("search", 1, 0.0)
    assert balances(buckets) == (tokens, requests) == (990, 0)


def test_a_team_without_limits_is_never_refused_and_has_no_headers() -> None:
    buckets = Buckets([FREE], 0.0)
    with buckets.reserve("lab", 10**12, 0.0):
        assert state(buckets, team="lab").outstanding_tokens == 10**12
    assert buckets.headers("lab", 0.0) == {}
    assert state(buckets, team="lab").tokens is None


def test_teams_do_not_spend_each_others_budget() -> None:
    other = LIMITED.model_copy(update={"name": "ads"})
    buckets = Buckets([LIMITED, other], 0.0)
    buckets.reserve("search", 1_000, 0.0).settle(1_000, 0.0)
    buckets.reserve("ads", 1_000, 0.0).release()


def test_a_removed_team_is_refused_and_its_open_reservations_end_quietly() -> None:
    buckets = Buckets([LIMITED], 0.0)
    reservation = buckets.reserve("search", 500, 0.0)
    buckets.update([FREE], 1.0)
    with pytest.raises(InvalidKey):
        buckets.reserve("search", 1, 1.0)
    assert buckets.headers("search", 1.0) == {}
    reservation.settle(100, 2.0)
    assert not reservation.is_open


def test_a_reload_keeps_spent_budgets_spent_and_open_reservations_open() -> None:
    buckets = Buckets([LIMITED], 0.0)
    reservation = buckets.reserve("search", 600, 0.0)
    buckets.update([LIMITED.model_copy(update={"burst_tokens": 2_000})], 0.0)
    assert balances(buckets) == (800, 9)
    assert state(buckets).outstanding_tokens == 600
    reservation.settle(100, 0.0)
    assert balances(buckets) == (1_300, 9)


def test_a_reload_that_changes_nothing_changes_no_balance() -> None:
    buckets = Buckets([LIMITED], 0.0)
    buckets.reserve("search", 600, 0.0).settle(600, 0.0)
    buckets.update([LIMITED], 5.0)
    assert balances(buckets, 5.0) == (450, 10)


def test_limits_that_are_taken_away_do_not_catch_up_with_open_reservations() -> None:
    buckets = Buckets([LIMITED], 0.0)
    reservation = buckets.reserve("search", 600, 0.0)
    buckets.update([Team(name="search")], 0.0)
    reservation.settle(10**9, 0.0)
    assert state(buckets).outstanding_tokens == 0
    buckets.update([LIMITED], 0.0)
    assert balances(buckets) == (1_000, 10)


def test_headers_show_what_is_left_and_when_it_is_whole_again() -> None:
    buckets = Buckets([LIMITED], 0.0)
    buckets.reserve("search", 255, 0.0).settle(255, 0.0)
    assert buckets.headers("search", 0.0) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "745",
        "x-ratelimit-reset-tokens": "25.5s",
    }


def test_a_team_in_debt_has_nothing_remaining() -> None:
    buckets = Buckets([LIMITED], 0.0)
    buckets.reserve("search", 1_000, 0.0).settle(1_500, 0.0)
    headers = buckets.headers("search", 0.0)
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    assert headers["x-ratelimit-reset-tokens"] == "2m30s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.012, "12ms"),
        (0.0121, "13ms"),
        (0.9999, "1s"),
        (1, "1s"),
        (17.5, "17.5s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (3_723, "1h2m3s"),
        (3_600, "1h0m0s"),
        (90_061.25, "25h1m1.25s"),
    ],
)
def test_durations_read_as_go_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 1e7))
def test_a_duration_is_never_shorter_than_the_wait(seconds: float) -> None:
    match = re.fullmatch(
        r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?", duration(seconds)
    )
    assert match is not None
    hours, minutes, whole_s, millis = (float(part or 0) for part in match.groups())
    read = hours * 3600 + minutes * 60 + whole_s + millis / 1000
    assert seconds - 1e-8 <= read <= seconds + 0.001 + 1e-8


@pytest.mark.parametrize("seed", range(5))
def test_any_mix_of_endings_leaves_nothing_outstanding(seed: int) -> None:
    chance = random.Random(seed)
    now = 0.0
    teams = [LIMITED, FREE, Team(name="night", tokens_per_s=5, burst_tokens=4_000)]
    buckets = Buckets(teams, now)
    open_ones: list[Reservation] = []
    for _ in range(2_000):
        now += chance.expovariate(2)
        try:
            with buckets.reserve(chance.choice(teams).name, chance.randrange(1, 900), now) as one:
                ending = chance.random()
                if ending < 0.3:
                    one.settle(chance.randrange(2_000), now)
                elif ending < 0.6:
                    one.detach()
                    open_ones.append(one)
                elif ending < 0.8:
                    raise LookupError
        except (RateLimited, LookupError):
            pass
        if open_ones and chance.random() < 0.5:
            late = open_ones.pop(chance.randrange(len(open_ones)))
            late.release() if chance.random() < 0.3 else late.settle(chance.randrange(2_000), now)
        if chance.random() < 0.01:
            changed = chance.choice([1_000, 2_000, None])
            rate = None if changed is None else 10
            teams[0] = teams[0].model_copy(update={"tokens_per_s": rate, "burst_tokens": changed})
            buckets.update(teams, now)
        for team in buckets.snapshot(now):
            for bucket in (team.tokens, team.requests):
                assert bucket is None or -bucket.burst <= bucket.balance <= bucket.burst
    for late in open_ones:
        late.settle(1, now)
    for team in buckets.snapshot(now):
        assert (team.outstanding_tokens, team.outstanding_requests) == (0, 0)
        assert math.isfinite(team.tokens.balance if team.tokens else 0)
