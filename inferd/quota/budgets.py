"""What teams have spent this month, held against their budgets. Owns those sums while inferd runs.

Counted from the ledger at start and by every settled request after that, so both agree. What is in
flight is not counted before it is settled: a team may end its month above its budget by that much.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from math import ceil
from typing import Final

from inferd.config.money import Budget
from inferd.config.schema import Team
from inferd.errors import BudgetSpent
from inferd.quota.prices import amount_text, pico_of

WARNING_HEADER: Final = "x-inferd-budget"
_FINE, _WARNED, _SPENT = range(3)
_MICROSECONDS: Final = 1_000_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Share:
    """How much of one kind of budget (`money`, `tokens`) is spent, in its own unit."""

    kind: str
    spent: int
    limit: int
    """Tokens, or 1e-12 of the currency."""

    @property
    def of_limit(self) -> Fraction:
        return Fraction(self.spent, self.limit)

    def amount(self, value: int) -> str:
        return f"{value:,}" if self.kind == "tokens" else amount_text(value)


@dataclass(frozen=True, slots=True)
class BudgetState:
    """One team's month as status, metrics and `inferd usage` show it."""

    team: str
    tokens: int
    cost_pico: int
    shares: tuple[Share, ...]
    """Of the budgets that it has."""
    warn_at: float
    stop: bool


class _Spent:
    """One team's month. Whole numbers only: it is asked at every request and settlement."""

    __slots__ = ("budget", "cost_pico", "limits", "tokens", "told")

    def __init__(self) -> None:
        self.tokens = 0
        self.cost_pico = 0
        self.budget: Budget | None = None
        self.limits: tuple[tuple[str, int, int], ...] = ()
        """Kind, limit, and from where on it warns."""
        self.told = _FINE

    def level(self) -> int:
        """How far it is, by the kind that is furthest."""
        level = _FINE
        for kind, limit, warn_at in self.limits:
            spent = self.tokens if kind == "tokens" else self.cost_pico
            if spent >= limit:
                return _SPENT
            if spent >= warn_at:
                level = _WARNED
        return level

    def shares(self) -> tuple[Share, ...]:
        spent = {"tokens": self.tokens, "money": self.cost_pico}
        return tuple(Share(kind, spent[kind], limit) for kind, limit, _ in self.limits)

    def worst(self) -> Share:
        """The kind of which most is spent."""
        return max(self.shares(), key=lambda share: share.of_limit)


class Budgets:
    """All teams. Times are microseconds UTC; a month is the calendar's, UTC."""

    def __init__(self, teams: Iterable[Team], currency: str, now_us: int) -> None:
        self._spent: dict[str, _Spent] = {}
        self._currency = currency
        self._begins_us, self._ends_us = month_of(now_us)
        self.update(teams, currency)

    @property
    def month_begins_us(self) -> int:
        return self._begins_us

    def update(self, teams: Iterable[Team], currency: str) -> None:
        """Apply a new config. What was spent stays, also of teams without a budget."""
        self._currency = currency
        budgets = {team.name: team.budget for team in teams}
        for name in self._spent.keys() | budgets.keys():
            account = self._spent.setdefault(name, _Spent())
            account.budget = budgets.get(name)
            account.limits = _limits(account.budget)
            account.told = min(account.told, account.level())

    def restore(self, spent: Iterable[tuple[str, int, int]]) -> None:
        """Start from the ledger's sums since `month_begins_us`: team, tokens, cost_pico."""
        for team, tokens, cost_pico in spent:
            account = self._spent.setdefault(team, _Spent())
            account.tokens, account.cost_pico = tokens, cost_pico

    def check(self, team: str, now_us: int) -> None:
        """Raises BudgetSpent when the team has spent this month's budget."""
        if now_us >= self._ends_us:
            self._next_month(now_us)
        account = self._spent.get(team)
        if account is None or account.budget is None or not account.budget.stop:
            return
        if account.level() == _SPENT:
            raise self._refusal(team, account.worst())

    def spend(self, team: str, tokens: int, cost_pico: int, ts_us: int) -> None:
        """A request that arrived at `ts_us` was settled; an earlier month's is not this one's."""
        if ts_us >= self._ends_us:
            self._next_month(ts_us)
        elif ts_us < self._begins_us:
            return
        account = self._spent.get(team)
        if account is None:
            account = self._spent[team] = _Spent()
        account.tokens += tokens
        account.cost_pico += cost_pico
        if account.limits and (level := account.level()) > account.told:
            account.told = level
            self._tell(team, account)

    def headers(self, team: str) -> dict[str, str]:
        """How much is spent, for a team that is past its `warn_at`; else nothing."""
        account = self._spent.get(team)
        if account is None or account.level() == _FINE:
            return {}
        worst = account.worst()
        return {WARNING_HEADER: f"{worst.kind}; spent={_percent(worst)}"}

    def snapshot(self, now_us: int) -> list[BudgetState]:
        """Every team that has a budget or has spent something this month."""
        if now_us >= self._ends_us:
            self._next_month(now_us)
        return [
            BudgetState(
                team=team,
                tokens=account.tokens,
                cost_pico=account.cost_pico,
                shares=account.shares(),
                warn_at=account.budget.warn_at if account.budget else 1.0,
                stop=account.budget.stop if account.budget else False,
            )
            for team, account in self._spent.items()
            if account.limits or account.tokens
        ]

    def _next_month(self, now_us: int) -> None:
        self._begins_us, self._ends_us = month_of(now_us)
        for account in self._spent.values():
            account.tokens = account.cost_pico = 0
            account.told = _FINE

    def _tell(self, team: str, account: _Spent) -> None:
        """Once past `warn_at` and once when it is spent, until the month or the budget changes."""
        worst, budget = account.worst(), account.budget
        assert budget is not None
        _log.warning(
            "team %s has spent %s of its monthly budget of %s: %s of %s%s",
            team,
            _percent(worst),
            worst.kind,
            worst.amount(worst.spent),
            worst.amount(worst.limit),
            "; it is refused from now on" if account.told == _SPENT and budget.stop else "",
            extra={"team": team, "budget": worst.kind, "share": float(worst.of_limit)},
        )

    def _refusal(self, team: str, worst: Share) -> BudgetSpent:
        unit = "tokens" if worst.kind == "tokens" else self._currency
        begins = datetime.fromtimestamp(self._ends_us // _MICROSECONDS, UTC)
        return BudgetSpent(
            f"Team `{team}` has spent its budget of this month: {worst.amount(worst.spent)} of"
            f" {worst.amount(worst.limit)} {unit}. A new month begins on {begins:%Y-%m-%d} (UTC);"
            " to go on before that, ask whoever runs inferd for a larger budget."
        )


def month_of(now_us: int) -> tuple[int, int]:
    """Begin and end of the month, UTC, in microseconds."""
    now = datetime.fromtimestamp(now_us // _MICROSECONDS, UTC)
    begins = datetime(now.year, now.month, 1, tzinfo=UTC)
    ends = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    return int(begins.timestamp()) * _MICROSECONDS, int(ends.timestamp()) * _MICROSECONDS


def _limits(budget: Budget | None) -> tuple[tuple[str, int, int], ...]:
    if budget is None:
        return ()
    limits = []
    if budget.money_per_month is not None:
        limits.append(("money", pico_of(budget.money_per_month)))
    if budget.tokens_per_month is not None:
        limits.append(("tokens", budget.tokens_per_month))
    share = Fraction(repr(budget.warn_at))
    return tuple((kind, limit, ceil(limit * share)) for kind, limit in limits)


def _percent(share: Share) -> str:
    return f"{int(share.of_limit * 100)}%"
