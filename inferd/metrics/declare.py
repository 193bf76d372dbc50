"""How metrics are declared, and how their children are bound to their labels once.

A lookup by labels costs several increments. Label values come from the configuration and from
enums only, so their number is bounded. The library's checks of each count (is it bound, has it an
exemplar) are left out: they cost more than the counting.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# Bucket bounds, in seconds but for the rows: dense around the usual targets (800 ms, 40 ms).
FIRST_TOKEN: Final = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.2, 1.6, 2.4, 4, 8, 15, 30, 60)
PER_TOKEN: Final = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.12, 0.25, 0.5, 1)
WAIT: Final = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)
START: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800)
LAG: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)

K = TypeVar("K")
C = TypeVar("C")


class Bound(dict[K, C], Generic[K, C]):
    """What is bound to a key, made when it is first asked for and kept."""

    def __init__(self, bind: Callable[[K], C]) -> None:
        super().__init__()
        self._bind = bind

    def __missing__(self, key: K) -> C:
        child = self[key] = self._bind(key)
        return child


class _Counter(Counter):
    def inc(self, amount: float = 1, exemplar: Mapping[str, str] | None = None) -> None:
        assert amount >= 0, amount
        assert exemplar is None, "no exemplars"
        self._value.inc(amount)


class _Histogram(Histogram):
    def observe(self, amount: float, exemplar: Mapping[str, str] | None = None) -> None:
        assert exemplar is None, "no exemplars"
        self._sum.inc(amount)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(1)


class Declarations:
    """Declares metrics in `registry`; what one owner counts is declared by one subclass."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def _counter(self, name: str, labels: str, told: str) -> Counter:
        return _Counter(name, told, labels.split(), registry=self._registry)

    def _gauge(self, name: str, labels: str, told: str) -> Gauge:
        return Gauge(name, told, labels.split(), registry=self._registry)

    def _histogram(self, name: str, labels: str, told: str, bounds: Sequence[float]) -> Histogram:
        return _Histogram(name, told, labels.split(), buckets=bounds, registry=self._registry)
