"""One token bucket: pure arithmetic on (state, now). `quota.buckets` owns every instance.

Reserving takes only what is there. A bill above its reservation is taken all the same, so the
balance may fall below zero, but never below minus `burst`: what is beyond is forgiven. Debt delays
later reservations, at most as long as a full bucket takes to fill. The balance never exceeds
`burst`. Time that runs backwards counts as no time.
"""

from __future__ import annotations

import math

# The sum of a start and a wait may round down; these make every wait we name long enough.
_ROUNDING_S = 1e-6
_ROUNDING_RATIO = 1.0 + 1e-12


class TokenBucket:
    """`rate_per_s` units flow in each second, at most `burst` are held. `stamp` is loop time."""

    __slots__ = ("balance", "burst", "rate_per_s", "stamp")

    def __init__(self, rate_per_s: float, burst: float, balance: float, stamp: float) -> None:
        assert 0 < rate_per_s < math.inf, rate_per_s
        assert 0 < burst < math.inf, burst
        assert -burst <= balance <= burst, balance
        self.rate_per_s = float(rate_per_s)
        self.burst = float(burst)
        self.balance = float(balance)
        self.stamp = stamp

    @classmethod
    def full(cls, rate_per_s: float, burst: float, now: float) -> TokenBucket:
        return cls(rate_per_s, burst, burst, now)

    def balance_at(self, now: float) -> float:
        """What is there at `now`, without changing anything."""
        elapsed_s = now - self.stamp
        if elapsed_s <= 0.0:
            return self.balance
        balance = self.balance + elapsed_s * self.rate_per_s
        if balance > self.burst:
            return self.burst
        return balance

    def refill(self, now: float) -> None:
        if now > self.stamp:
            self.balance = self.balance_at(now)
            self.stamp = now

    def reserve(self, amount: float, now: float) -> bool:
        """Take `amount` if it is there; else take nothing and say False."""
        assert amount >= 0, amount
        self.refill(now)
        if self.balance < amount:
            return False
        self.balance -= amount
        return True

    def give_back(self, amount: float) -> None:
        """Return what was taken. Refill and return commute under the cap, so no time is needed."""
        assert amount >= 0, amount
        self.balance = min(self.burst, self.balance + amount)

    def settle(self, reserved: float, actual: float, now: float) -> None:
        """Replace a reservation by what was really used, which may leave a debt."""
        assert actual >= 0, actual
        self.refill(now)
        self.balance = max(-self.burst, min(self.burst, self.balance + reserved - actual))

    def time_until(self, amount: float, now: float) -> float:
        """Seconds until `amount` is there if nobody else takes any; infinity above `burst`."""
        if amount > self.burst:
            return math.inf
        missing = amount - self.balance_at(now)
        if missing <= 0:
            return 0.0
        return missing / self.rate_per_s * _ROUNDING_RATIO + _ROUNDING_S

    def time_until_full(self, now: float) -> float:
        return (self.burst - self.balance_at(now)) / self.rate_per_s

    def update(self, rate_per_s: float, burst: float, now: float) -> None:
        """New limits: a full bucket stays full and an empty one empty; a debt keeps its size."""
        assert 0 < rate_per_s < math.inf, rate_per_s
        assert 0 < burst < math.inf, burst
        self.refill(now)
        if self.balance > 0:
            self.balance = min(1.0, self.balance / self.burst) * burst
        else:
            self.balance = max(-float(burst), self.balance)
        self.rate_per_s = float(rate_per_s)
        self.burst = float(burst)
