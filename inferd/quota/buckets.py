"""Owns the token and request buckets of teams, their models and keys, and the reservations on them.

A reservation takes from every bucket that a request falls under or from none; a refused request
costs nothing. It is closed once: by `settle` with what the engine counted, or by `release`, which
returns everything. Whoever leaves its scope without settling releases it, unless it was detached.
What has no limit has no bucket and no headers, but a team's open reservations are always counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from inferd.config.limits import Limited
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
class PairState:
    """The buckets of one model of a team, or of one key."""

    tokens: BucketState | None
    requests: BucketState | None


@dataclass(frozen=True, slots=True)
class TeamState:
    """One team's buckets and what is reserved on them now; `models` and `keys` by name and id."""

    team: str
    tokens: BucketState | None
    requests: BucketState | None
    outstanding_tokens: int
    outstanding_requests: int
    models: dict[str, PairState]
    keys: dict[str, PairState]


class _Pair:
    """Both buckets of one owner, `of` in words. Either may be missing: no limit."""

    __slots__ = ("of", "requests", "tokens")

    def __init__(self, of: str) -> None:
        self.of = of
        self.tokens: TokenBucket | None = None
        self.requests: TokenBucket | None = None

    def update(self, limits: Limited, now: float) -> None:
        self.tokens = _limited(self.tokens, limits.tokens_per_s, limits.burst_tokens, now)
        self.requests = _limited(self.requests, limits.requests_per_s, limits.burst_requests, now)

    def buckets(self) -> Iterator[tuple[str, TokenBucket]]:
        """Those that are there, with their kind."""
        if self.requests is not None:
            yield "requests", self.requests
        if self.tokens is not None:
            yield "tokens", self.tokens

    def state(self, now: float) -> PairState:
        return PairState(_state(self.tokens, now), _state(self.requests, now))


class _Account:
    """One team. Reservations keep it, so it outlives the team's removal from the config."""

    __slots__ = ("keys", "models", "outstanding_requests", "outstanding_tokens", "own", "team")

    def __init__(self, team: str) -> None:
        self.team = team
        self.own = _Pair(f"team `{team}`")
        self.models: dict[str, _Pair] = {}
        self.keys: dict[str, _Pair] = {}
        self.outstanding_tokens = 0
        self.outstanding_requests = 0

    def update(self, team: Team, now: float) -> None:
        self.own.update(team, now)
        models: dict[str, _Pair] = {}
        for limits in team.limits:
            of = f"team `{team.name}` on model `{limits.model}`"
            pair = models[limits.model] = self.models.get(limits.model) or _Pair(of)
            pair.update(limits, now)
        self.models = models

    def pairs(self, model: str, key_id: str) -> list[_Pair]:
        """All that a request falls under."""
        found = [self.own]
        if (pair := self.models.get(model)) is not None:
            found.append(pair)
        if (pair := self.keys.get(key_id)) is not None:
            found.append(pair)
        return found

    def named(self) -> Iterator[tuple[str, str, _Pair]]:
        """Every pair, with the model and the key that it is of."""
        yield "", "", self.own
        for model, pair in self.models.items():
            yield model, "", pair
        for key_id, pair in self.keys.items():
            yield "", key_id, pair


class Reservation:
    """A claim on all buckets of a request. Leaving the scope open and not detached returns it."""

    __slots__ = ("_account", "_detached", "_open", "_requests", "_tokens", "tokens")

    def __init__(
        self,
        account: _Account,
        of_tokens: list[TokenBucket],
        of_requests: list[TokenBucket],
        tokens: int,
    ) -> None:
        self.tokens = tokens
        self._account = account
        # Kept from the time of taking: a reload may give the team other buckets meanwhile.
        self._tokens = of_tokens
        self._requests = of_requests
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
        if self._close():
            for bucket in self._tokens:
                bucket.settle(self.tokens, actual_tokens, now)

    def release(self) -> None:
        """Nothing was used: give back tokens and request."""
        if not self._close():
            return
        for bucket in self._tokens:
            bucket.give_back(self.tokens)
        for bucket in self._requests:
            bucket.give_back(1)

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
    """All teams of the config, and the keys that have limits. Times are loop times in seconds."""

    def __init__(self, teams: Iterable[Team], now: float) -> None:
        self._accounts: dict[str, _Account] = {}
        self._keys: dict[str, tuple[str, _Pair]] = {}
        """Of every key with limits: its team, which may be none of the config now."""
        self.update(teams, now)

    def update(self, teams: Iterable[Team], now: float) -> None:
        """Apply a new config: kept teams keep their balance in proportion, new ones start full."""
        accounts: dict[str, _Account] = {}
        for team in teams:
            account = self._accounts.get(team.name) or _Account(team.name)
            account.update(team, now)
            accounts[team.name] = account
        self._accounts = accounts
        for key_id, (name, pair) in self._keys.items():
            if name in accounts:
                accounts[name].keys[key_id] = pair

    def limit_key(self, team: str, key_id: str, limits: Limited | None, now: float) -> None:
        """What one key may use beside its team's others; None: the key is gone."""
        account = self._accounts.get(team)
        if limits is None or (limits.tokens_per_s is None and limits.requests_per_s is None):
            self._keys.pop(key_id, None)
            if account is not None:
                account.keys.pop(key_id, None)
            return
        _, pair = self._keys.get(key_id) or (team, _Pair(f"key `{key_id}`"))
        pair.update(limits, now)
        self._keys[key_id] = team, pair
        if account is not None:
            account.keys[key_id] = pair

    def reserve(
        self, team: str, tokens: int, now: float, *, model: str = "", key_id: str = ""
    ) -> Reservation:
        """Claim `tokens` and one request of every limit the request falls under, all or none.

        Raises InvalidField if so many tokens can never be there at once, RateLimited with the time
        until they are, InvalidKey if the team was removed after the key was checked.
        """
        assert tokens >= 0, tokens
        account = self._accounts.get(team)
        if account is None:
            raise InvalidKey("This API key is no longer valid: its team was removed.")
        pairs = account.pairs(model, key_id)
        of_tokens = [pair.tokens for pair in pairs if pair.tokens is not None]
        of_requests = [pair.requests for pair in pairs if pair.requests is not None]
        for buckets, amount in ((of_tokens, tokens), (of_requests, 1)):
            for bucket in buckets:
                bucket.refill(now)
                if bucket.balance < amount:
                    raise _refusal(pairs, tokens, now)
        for bucket in of_tokens:
            bucket.balance -= tokens
        for bucket in of_requests:
            bucket.balance -= 1
        return Reservation(account, of_tokens, of_requests, tokens)

    def edges(self, team: str, now: float, *, model: str, key_id: str) -> list[float]:
        """Numbers of tokens at which such a request is refused: balances and sizes of buckets."""
        account = self._accounts.get(team)
        pairs = account.pairs(model, key_id) if account else []
        return [
            edge
            for pair in pairs
            if pair.tokens is not None
            for edge in (pair.tokens.balance_at(now), pair.tokens.burst)
        ]

    def balances(self, now: float) -> list[Balance]:
        """What every bucket holds, open reservations taken as spent."""
        return [
            Balance(account.team, kind, bucket.balance_at(now), model, key_id)
            for account in self._accounts.values()
            for model, key_id, pair in account.named()
            for kind, bucket in pair.buckets()
        ]

    def restore(self, saved: Iterable[tuple[Balance, float]], now: float) -> None:
        """Start from what was left some seconds ago, refilled since. Unknown buckets start full."""
        known = {
            (account.team, model, key_id, kind): bucket
            for account in self._accounts.values()
            for model, key_id, pair in account.named()
            for kind, bucket in pair.buckets()
        }
        for one, age_s in saved:
            bucket = known.get((one.team, one.model, one.key_id, one.kind))
            if bucket is not None:
                balance = one.balance + age_s * bucket.rate_per_s
                bucket.balance = max(-bucket.burst, min(bucket.burst, balance))
                bucket.stamp = now

    def headers(
        self, team: str, now: float, *, model: str = "", key_id: str = ""
    ) -> dict[str, str]:
        """The x-ratelimit-* headers: of each kind the bucket with least left; none without limits.

        `model` is empty as long as the request's is not known.
        """
        account = self._accounts.get(team)
        pairs = account.pairs(model, key_id) if account else ()
        headers: dict[str, str] = {}
        for kind, buckets in (
            ("requests", [pair.requests for pair in pairs if pair.requests is not None]),
            ("tokens", [pair.tokens for pair in pairs if pair.tokens is not None]),
        ):
            least, tightest = math.inf, None
            for bucket in buckets:
                left = bucket.balance_at(now)
                if left < least:
                    least, tightest = left, bucket
            if tightest is not None:
                full_s = (tightest.burst - least) / tightest.rate_per_s
                headers["x-ratelimit-limit-" + kind] = str(int(tightest.burst))
                headers["x-ratelimit-remaining-" + kind] = str(int(least)) if least > 0 else "0"
                headers["x-ratelimit-reset-" + kind] = duration(full_s)
        return headers

    def snapshot(self, now: float) -> list[TeamState]:
        """Every team, in the order of the config."""
        return [
            TeamState(
                team=account.team,
                tokens=_state(account.own.tokens, now),
                requests=_state(account.own.requests, now),
                outstanding_tokens=account.outstanding_tokens,
                outstanding_requests=account.outstanding_requests,
                models={name: pair.state(now) for name, pair in account.models.items()},
                keys={key_id: pair.state(now) for key_id, pair in account.keys.items()},
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


def _refusal(pairs: list[_Pair], tokens: int, now: float) -> InvalidField | RateLimited:
    """Why it cannot be taken: never, or not now, by the bucket that takes longest."""
    longest_s, refused = 0.0, None
    for pair in pairs:
        if pair.tokens is not None and tokens > pair.tokens.burst:
            return _never_fits(pair.of, tokens, pair.tokens)
        for kind, bucket in pair.buckets():
            amount = tokens if kind == "tokens" else 1
            wait_s = bucket.time_until(amount, now)
            if wait_s > 0 and wait_s >= longest_s:
                longest_s, refused = wait_s, (pair.of, kind, bucket, amount)
    assert refused is not None, "some bucket has less than was asked for"
    return _limited_for(*refused, longest_s, now)


def _never_fits(of: str, tokens: int, bucket: TokenBucket) -> InvalidField:
    return InvalidField(
        f"Invalid 'max_completion_tokens': with its prompt the request may use {tokens} tokens, but"
        f" {of} can never have more than {bucket.burst:.0f} at once. Lower"
        " max_completion_tokens or n, or shorten messages.",
        param="max_completion_tokens",
    )


def _limited_for(
    of: str, kind: str, bucket: TokenBucket, amount: int, wait_s: float, now: float
) -> RateLimited:
    left = max(0, math.floor(bucket.balance_at(now)))
    return RateLimited(
        f"Rate limit of {of} reached on {kind}: {bucket.rate_per_s:g} per second with a"
        f" burst of {bucket.burst:.0f}; {left} left, {amount} needed."
        f" Try again in {duration(wait_s)}.",
        limit=kind,
        retry_after_s=wait_s,
    )


def _state(bucket: TokenBucket | None, now: float) -> BucketState | None:
    if bucket is None:
        return None
    return BucketState(bucket.balance_at(now), bucket.burst, bucket.rate_per_s)
