"""Balances outlive a restart: neither refilled nor emptied by it."""

from __future__ import annotations

import pytest

from inferd.config.schema import Team
from inferd.errors import RateLimited
from inferd.quota.buckets import Buckets
from inferd.storage import balances
from tests.fakes.inline_database import InlineDatabase
from tests.fakes.running_database import running

TEAM = Team(
    name="search", tokens_per_s=100, burst_tokens=1_000, requests_per_s=1.0, burst_requests=5
)


async def test_a_restart_finds_what_was_left_and_refills_for_the_time_between() -> None:
    before = Buckets([TEAM], 0.0)
    before.reserve("search", 900, 0.0).settle(900, 0.0)
    async with running(InlineDatabase.open()) as db:
        balances.save(db, before.balances(0.0), 1_000_000)
        balances.save(db, before.balances(0.0), 1_000_000)
        await db.flush()
        saved = await balances.load(db, 4_000_000)
    after = Buckets([TEAM], 50.0)
    after.restore(saved, 50.0)
    state = after.snapshot(50.0)[0]
    assert state.tokens is not None
    assert state.requests is not None
    assert state.tokens.balance == pytest.approx(400)
    assert state.requests.balance == 5
    with pytest.raises(RateLimited):
        after.reserve("search", 401, 50.0)


async def test_a_debt_stays_and_a_clock_set_back_is_no_time() -> None:
    before = Buckets([TEAM], 0.0)
    before.reserve("search", 1_000, 0.0).settle(1_500, 0.0)
    async with running(InlineDatabase.open()) as db:
        balances.save(db, before.balances(0.0), 10_000_000)
        await db.flush()
        saved = await balances.load(db, 5_000_000)
    after = Buckets([TEAM], 0.0)
    after.restore(saved, 0.0)
    state = after.snapshot(0.0)[0].tokens
    assert state is not None
    assert state.balance == pytest.approx(-500)


def test_teams_and_limits_that_are_gone_are_ignored() -> None:
    after = Buckets([Team(name="other")], 0.0)
    after.restore([(balances.Balance("search", "tokens", 1.0), 0.0)], 0.0)
    after.restore([(balances.Balance("other", "tokens", 1.0), 0.0)], 0.0)
    assert after.balances(0.0) == []
