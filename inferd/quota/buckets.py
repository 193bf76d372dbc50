"""Owns every team's token and request buckets and the reservations made on them.

A reservation takes from both buckets or from neither; a refused request costs nothing. It is
closed once: by `settle` with what the engine counted, or by `release`, which returns everything.
Whoever leaves its scope without settling releases it, unless it was detached. A team without a
limit has no bucket and no headers, but its open reservations are counted all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from inferd.config.schema import Team
from inferd.errors import InvalidField, InvalidKey, RateLimited
from inferd.quota.bucket import TokenBucket
from inferd.storage.balances import Balance


@dataclass(frozen=True, slots=True)
class BucketState:
    """One bucket as status and metrics show it."""

    balance: float
    burst: float
    rate_per_s: float


@dataclass(frozen=True, slots=True)
class TeamState:
    """One team's buckets and what is reserved on them now."""

    team: str
    tokens: BucketState | None
    requests: BucketState | None
    outstanding_tokens: int
    outstanding_requests: int


class _Account:
    """One team. Reservations keep it, so it outlives the team's removal from the config."""

    __slots__ = ("outstanding_requests", "outstanding_tokens", "requests", "team", "tokens")

    def __init__(self, team: str) -> None:
        self.team = team
        self.tokens: TokenBucket | None = None
        self.requests: TokenBucket | None = None
        self.outstanding_tokens = 0
        self.outstanding_requests = 0


class Reservation:
    """A team's claim on its buckets. Leaving the scope open and not detached returns it whole."""

    __slots__ = ("_account", "_detached", "_open", "_requests", "_tokens_bucket", "tokens")

    def __init__(self, account: _Account, tokens: int) -> None:
        self.tokens = tokens
        self._account = account
        # Kept from the time of taking: a reload may give the team other buckets meanwhile.
        self._tokens_bucket = account.tokens
        self._requests = account.requests
        self._open = True
        self._detached = False
        account.outstanding_tokens += tokens
        account.outstanding_requests += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._detached:
            self.release()

    @property
    def team(self) -> str:
        return self._account.team

    @property
    def is_open(self) -> bool:
        return self._open

    def settle(self, actual_tokens: int, now: float) -> None:
        """The bill. Only the first of settle and release counts; the request stays spent."""
        if self._close() and self._tokens_bucket is not None:
            self._tokens_bucket.settle(self.tokens, actual_tokens, now)

    def release(self) -> None:
        """Nothing was used: give back tokens and request."""
        if not self._close():
            return
        if self._tokens_bucket is not None:
            self._tokens_bucket.give_back(self.tokens)
        if self._requests is not None:
            self._requests.give_back(1)

    def detach(self) -> None:
        """Keep it open beyond its scope, for a bill that comes later: its new owner closes it."""
        self._detached = True

    def _close(self) -> bool:
        if not self._open:
            return False
        self._open = False
        self._account.outstanding_tokens -= self.tokens
        self._account.outstanding_requests -= 1
        return True


class Buckets:
    """All teams of the config. Times are loop times in seconds."""

    def __init__(self, teams: Iterable[Team], now: float) -> None:
        self._accounts: dict[str, _Account] = {}
        self.update(teams, now)

    def update(self, teams: Iterable[Team], now: float) -> None:
        """Apply a new config: kept teams keep their balance in proportion, new ones start full."""
        accounts: dict[str, _Account] = {}
        for team in teams:
            account = self._accounts.get(team.name) or _Account(team.name)
            account.tokens = _limited(account.tokens, team.tokens_per_s, team.burst_tokens, now)
            account.requests = _limited(
                account.requests, team.requests_per_s, team.burst_requests, now
            )
            accounts[team.name] = account
        self._accounts = accounts

    def reserve(self, team: str, tokens: int, now: float) -> Reservation:
        """Claim `tokens` and one request, both or none.

        Raises InvalidField if so many tokens can never be there at once, RateLimited with the time
        until they are, InvalidKey if the team was removed after the key was checked.
        """
        assert tokens >= 0, tokens
        account = self._accounts.get(team)
        if account is None:
            raise InvalidKey("This API key is no longer valid: its team was removed.")
        bucket, requests = account.tokens, account.requests
        if bucket is not None and tokens > bucket.burst:
            raise _never_fits(team, tokens, bucket)
        tokens_wait_s = 0.0 if bucket is None else bucket.time_until(tokens, now)
        requests_wait_s = 0.0 if requests is None else requests.time_until(1, now)
        if tokens_wait_s > 0 or requests_wait_s > 0:
            if bucket is not None and tokens_wait_s >= requests_wait_s:
                raise _limited_for(team, "tokens", bucket, tokens, tokens_wait_s, now)
            assert requests is not None
            raise _limited_for(team, "requests", requests, 1, requests_wait_s, now)
        if bucket is not None:
            taken = bucket.reserve(tokens, now)
            assert taken
        if requests is not None:
            taken = requests.reserve(1, now)
            assert taken
        return Reservation(account, tokens)

    def balances(self, now: float) -> list[Balance]:
        """What every bucket holds, open reservations taken as spent."""
        return [
            Balance(account.team, kind, bucket.balance_at(now))
            for account in self._accounts.values()
            for kind, bucket in (("tokens", account.tokens), ("requests", account.requests))
            if bucket is not None
        ]

    def restore(self, saved: Iterable[tuple[Balance, float]], now: float) -> None:
        """Start from what was left some seconds ago, refilled since. Unknown buckets start full."""
        for one, age_s in saved:
            account = self._accounts.get(one.team)
            bucket = None
            if account is not None:
                bucket = account.tokens if one.kind == "tokens" else account.requests
            if bucket is not None:
                balance = one.balance + age_s * bucket.rate_per_s
                bucket.balance = max(-bucket.burst, min(bucket.burst, balance))
                bucket.stamp = now

    def headers(self, team: str, now: float) -> dict[str, str]:
        """The x-ratelimit-* headers of the team's buckets; empty for a team without limits."""
        account = self._accounts.get(team)
        headers: dict[str, str] = {}
        if account is None:
            return headers
        for kind, bucket in (("requests", account.requests), ("tokens", account.tokens)):
            if bucket is not None:
                headers[f"x-ratelimit-limit-{kind}"] = str(math.floor(bucket.burst))
                left = max(0, math.floor(bucket.balance_at(now)))
                headers[f"x-ratelimit-remaining-{kind}"] = str(left)
                headers[f"x-ratelimit-reset-{kind}"] = duration(bucket.time_until_full(now))
        return headers

    def snapshot(self, now: float) -> list[TeamState]:
        """Every team, in the order of the config."""
        return [
            TeamState(
                team=account.team,
                tokens=_state(account.tokens, now),
                requests=_state(account.requests, now),
                outstanding_tokens=account.outstanding_tokens,
                outstanding_requests=account.outstanding_requests,
            )
            for account in self._accounts.values()
        ]


def duration(seconds: float) -> str:
    """Seconds as Go prints a duration, rounded up to a millisecond: 12ms, 17.5s, 6m0s, 1h2m3s."""
    # The small allowance keeps 0.012 at 12 ms although 0.012 * 1000 is a little more than 12.
    total_ms = max(0, math.ceil(seconds * 1000 - 1e-6))
    total_s, millis = divmod(total_ms, 1000)
    if millis and not total_s:
        return f"{millis}ms"
    minutes, rest_s = divmod(total_s, 60)
    fraction = f".{millis:03d}".rstrip("0") if millis else ""
    text = f"{rest_s}{fraction}s"
    if minutes:
        hours, rest_minutes = divmod(minutes, 60)
        text = f"{hours}h{rest_minutes}m{text}" if hours else f"{minutes}m{text}"
    return text


def _limited(
    bucket: TokenBucket | None, rate_per_s: float | None, burst: int | None, now: float
) -> TokenBucket | None:
    if rate_per_s is None or burst is None:
        return None
    if bucket is None:
        return TokenBucket.full(rate_per_s, burst, now)
    bucket.update(rate_per_s, burst, now)
    return bucket


def _never_fits(team: str, tokens: int, bucket: TokenBucket) -> InvalidField:
    return InvalidField(
        f"Invalid 'max_completion_tokens': with its prompt the request may use {tokens} tokens, but"
        f" team `{team}` can never have more than {bucket.burst:.0f} at once. Lower"
        " max_completion_tokens or n, or shorten messages.",
        param="max_completion_tokens",
    )


def _limited_for(
    team: str, kind: str, bucket: TokenBucket, amount: int, wait_s: float, now: float
) -> RateLimited:
    left = max(0, math.floor(bucket.balance_at(now)))
    return RateLimited(
        f"Rate limit of team `{team}` reached on {kind}: {bucket.rate_per_s:g} per second with a"
        f" burst of {bucket.burst:.0f}; {left} left, {amount} needed."
        f" Try again in {duration(wait_s)}.",
        limit=kind,
        retry_after_s=wait_s,
    )


def _state(bucket: TokenBucket | None, now: float) -> BucketState | None:
    if bucket is None:
        return None
    return BucketState(bucket.balance_at(now), bucket.burst, bucket.rate_per_s)
