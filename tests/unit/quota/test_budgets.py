"""Budgets. Goal: spent is refused until the month ends, and told once before that."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.config.money import Budget
from inferd.config.schema import Team
from inferd.errors import BudgetSpent
from inferd.quota.budgets import WARNING_HEADER, Budgets, month_of


def at(year: int, month: int, day: int) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp()) * 1_000_000


NOW = at(2026, 12, 15)


def budgets(**budget: Any) -> Budgets:
    team = Team(name="search", budget=Budget(**budget) if budget else None)
    return Budgets([team, Team(name="free")], "EUR", NOW)


def test_what_is_spent_is_refused_and_why_is_said() -> None:
    found = budgets(tokens_per_month=100)
    found.spend("search", 99, 0, NOW)
    found.check("search", NOW)
    found.spend("search", 1, 0, NOW)
    with pytest.raises(BudgetSpent, match=r"100 of 100 tokens.*begins on 2027-01-01") as refused:
        found.check("search", NOW)
    assert (refused.value.code, refused.value.client_retry) == ("insufficient_quota", False)
    found.check("free", NOW)
    found.check("system", NOW)


def test_the_kind_that_is_spent_first_counts() -> None:
    found = budgets(tokens_per_month=100, money_per_month=0.5)
    found.spend("search", 10, 500_000_000_000, NOW)
    with pytest.raises(BudgetSpent, match=r"0\.50 of 0\.50 EUR"):
        found.check("search", NOW)


def test_a_new_month_begins_at_nothing_and_an_old_request_is_the_old_months() -> None:
    found = budgets(tokens_per_month=100)
    found.spend("search", 100, 0, NOW)
    found.check("search", at(2027, 1, 1))
    found.spend("search", 100, 0, NOW)
    found.check("search", at(2027, 1, 1))
    (state, *_) = found.snapshot(at(2027, 1, 2))
    assert (state.team, state.tokens) == ("search", 0)


def test_it_warns_once_and_again_when_it_is_spent(caplog: pytest.LogCaptureFixture) -> None:
    found = budgets(tokens_per_month=100, warn_at=0.5)
    assert found.headers("search") == {}
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            found.spend("search", 30, 0, NOW)
    told = [record.getMessage() for record in caplog.records]
    soon, spent = told
    assert soon == "team search has spent 60% of its monthly budget of tokens: 60 of 100"
    assert spent.endswith("budget of tokens: 120 of 100; it is refused from now on")
    assert found.headers("search") == {WARNING_HEADER: "tokens; spent=150%"}
    assert found.headers("free") == {}


def test_one_that_only_warns_refuses_nothing() -> None:
    found = budgets(tokens_per_month=1, stop=False)
    found.spend("search", 100, 0, NOW)
    found.check("search", NOW)


def test_a_changed_budget_counts_what_was_spent() -> None:
    found = budgets()
    found.spend("search", 100, 0, NOW)
    found.update([Team(name="search", budget=Budget(tokens_per_month=50))], "EUR")
    with pytest.raises(BudgetSpent):
        found.check("search", NOW)
    found.update([Team(name="search", budget=Budget(tokens_per_month=500))], "EUR")
    found.check("search", NOW)


def test_a_restart_counts_from_the_ledger() -> None:
    found = budgets(tokens_per_month=100)
    found.restore([("search", 100, 7), ("gone", 5, 5)])
    with pytest.raises(BudgetSpent):
        found.check("search", NOW)


@given(st.integers(0, at(2100, 1, 1) // 10**6))
def test_a_month_is_the_calendars(seconds: int) -> None:
    now = datetime.fromtimestamp(seconds, UTC)
    begins, ends = month_of(seconds * 1_000_000)
    first, last = (datetime.fromtimestamp(us // 10**6, UTC) for us in (begins, ends - 10**6))
    assert first <= now <= last
    assert (first.day, first.hour, first.month, last.month) == (1, 0, now.month, now.month)
