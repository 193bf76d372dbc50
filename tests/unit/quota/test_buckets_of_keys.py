"""Limits of a team on one model and of single keys, beside those of the team: all or none."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inferd.config.limits import Limits, LimitsOnModel
from inferd.config.schema import Team
from inferd.errors import InvalidField, RateLimited
from inferd.quota.buckets import Buckets, Reservation

LAYERED = Team(
    name="search",
    tokens_per_s=10,
    burst_tokens=1_000,
    limits=(
        LimitsOnModel(model="large", tokens_per_s=5, burst_tokens=600),
        LimitsOnModel(model="small", requests_per_s=1.0, burst_requests=3),
    ),
)
KEY = Limits(tokens_per_s=1, burst_tokens=400, requests_per_s=1.0, burst_requests=50)


def layered() -> Buckets:
    buckets = Buckets([LAYERED], 0.0)
    buckets.limit_key("search", "key_1", KEY, 0.0)
    return buckets


def everything(buckets: Buckets, now: float = 0.0) -> dict[tuple[str, str, str], float]:
    return {(one.model, one.key_id, one.kind): one.balance for one in buckets.balances(now)}


def test_a_request_is_charged_to_every_limit_it_falls_under_or_to_none() -> None:
    buckets = layered()
    with buckets.reserve("search", 300, 0.0, model="large", key_id="key_1") as held:
        assert everything(buckets) == {
            ("", "", "tokens"): 700,
            ("large", "", "tokens"): 300,
            ("small", "", "requests"): 3,
            ("", "key_1", "tokens"): 100,
            ("", "key_1", "requests"): 49,
        }
        before = everything(buckets)
        with pytest.raises(RateLimited, match=r"key `key_1` reached on tokens") as refused:
            buckets.reserve("search", 150, 0.0, model="large", key_id="key_1")
        assert refused.value.retry_after_s == pytest.approx(50, abs=1e-3)
        assert everything(buckets) == before, "what was refused costs nothing, anywhere"
        with pytest.raises(RateLimited, match=r"team `search` on model `large`"):
            buckets.reserve("search", 400, 0.0, model="large", key_id="key_2")
        assert everything(buckets) == before
        held.settle(120, 0.0)
    after = everything(buckets)
    assert after["", "", "tokens"] == 880
    assert after["large", "", "tokens"] == 480
    assert after["", "key_1", "tokens"] == 280


def test_what_can_never_fit_the_key_is_a_client_error_although_it_fits_the_team() -> None:
    buckets = layered()
    with pytest.raises(InvalidField, match="key `key_1` can never have more than 400"):
        buckets.reserve("search", 500, 0.0, key_id="key_1")
    buckets.reserve("search", 500, 0.0, key_id="key_2").release()


def test_the_headers_are_of_the_tightest_bucket() -> None:
    buckets = layered()
    assert buckets.headers("search", 0.0)["x-ratelimit-limit-tokens"] == "1000"
    of_key = buckets.headers("search", 0.0, model="large", key_id="key_1")
    assert of_key["x-ratelimit-limit-tokens"] == "400"
    assert of_key["x-ratelimit-remaining-requests"] == "50"
    on_small = buckets.headers("search", 0.0, model="small", key_id="key_1")
    assert on_small["x-ratelimit-limit-requests"] == "3"
    buckets.reserve("search", 550, 0.0, model="large").detach()
    assert buckets.headers("search", 0.0, model="large")["x-ratelimit-remaining-tokens"] == "50"


def test_limits_of_keys_and_models_survive_a_restart_and_a_reload() -> None:
    before = layered()
    before.reserve("search", 300, 0.0, model="large", key_id="key_1").settle(300, 0.0)
    saved = [(one, 10.0) for one in before.balances(0.0)]
    after = layered()
    after.restore(saved, 0.0)
    assert everything(after) == {
        ("", "", "tokens"): 800,
        ("large", "", "tokens"): 350,
        ("small", "", "requests"): 3,
        ("", "key_1", "tokens"): 110,
        ("", "key_1", "requests"): 50,
    }
    twice = LimitsOnModel(model="large", tokens_per_s=5, burst_tokens=1_200)
    after.update([LAYERED.model_copy(update={"limits": (twice,)})], 0.0)
    assert everything(after) == {
        ("", "", "tokens"): 800,
        ("large", "", "tokens"): 700,
        ("", "key_1", "tokens"): 110,
        ("", "key_1", "requests"): 50,
    }
    after.limit_key("search", "key_1", None, 0.0)
    assert ("", "key_1", "tokens") not in everything(after)


def test_a_key_keeps_its_bucket_while_its_team_is_out_of_the_config() -> None:
    buckets = layered()
    buckets.reserve("search", 300, 0.0, key_id="key_1").settle(300, 0.0)
    buckets.update([], 0.0)
    buckets.update([LAYERED], 0.0)
    assert everything(buckets)["", "key_1", "tokens"] == 100


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["large", "small", "other"]),
            st.sampled_from(["key_1", "key_2"]),
            st.integers(1, 500),
            st.sampled_from(["settle", "release", "keep"]),
            st.floats(0, 30),
        ),
        max_size=60,
    )
)
def test_no_mix_overdraws_any_bucket_and_what_is_refused_changes_none(
    asked: list[tuple[str, str, int, str, float]],
) -> None:
    buckets, now = layered(), 0.0
    kept: list[Reservation] = []
    for model, key_id, tokens, ending, passed_s in asked:
        now += passed_s
        before = everything(buckets, now)
        try:
            one = buckets.reserve("search", tokens, now, model=model, key_id=key_id)
        except (RateLimited, InvalidField):
            assert everything(buckets, now) == before
            continue
        assert all(balance >= 0 for balance in everything(buckets, now).values())
        if ending == "release":
            one.release()
            assert everything(buckets, now) == pytest.approx(before)
        elif ending == "settle":
            one.settle(tokens // 2, now)
        else:
            kept.append(one)
    for one in kept:
        one.release()
    assert buckets.snapshot(now)[0].outstanding_tokens == 0


def test_of_twenty_at_once_a_key_lets_in_exactly_as_many_as_fit() -> None:
    buckets = Buckets([Team(name="search", tokens_per_s=10, burst_tokens=100_000)], 0.0)
    buckets.limit_key("search", "key_1", Limits(tokens_per_s=1, burst_tokens=1_000), 0.0)
    admitted = 0
    for _ in range(20):
        try:
            buckets.reserve("search", 300, 0.0, key_id="key_1")
        except RateLimited:
            continue
        admitted += 1
    assert admitted == 3
    assert everything(buckets)["", "", "tokens"] == 100_000 - 900
