"""The search for what a gateway takes: late is later than the way without it, measured or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.benchmarks.relay import limits
from scripts.benchmarks.relay.contenders import Running
from scripts.benchmarks.relay.limits import ADDED_MS_MAX, Limits, Search

DIRECT = Running("direct", 1, "", None)
GATEWAY = Running("gateway", 2, "", None)


def search(monkeypatch: pytest.MonkeyPatch, *, rate: float, direct_rate: float) -> Limits:
    """A gateway that is late above `rate`, where no answer at all comes above `direct_rate`."""

    def ttft_ms(one: Running, value: float) -> float:
        if value > direct_rate:
            return float("inf")
        late = one is GATEWAY and value > rate
        return 1.0 + ADDED_MS_MAX * (1.5 if late else 0.5) * (one is GATEWAY)

    monkeypatch.setattr(limits, "_at_rate", lambda one, _, value: ttft_ms(one, value))
    monkeypatch.setattr(limits, "_beside", lambda one, _, streams, __: ttft_ms(one, streams))
    return Search(DIRECT, Path(), 25.0).limits(GATEWAY)


def test_the_limit_is_where_it_begins_to_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    found = search(monkeypatch, rate=700.0, direct_rate=1e9)
    assert 700 / limits.PRECISION <= found.requests_per_s <= 700
    assert 700 / limits.PRECISION <= found.streams <= 700


def test_where_nothing_answers_without_a_gateway_nobody_is_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = search(monkeypatch, rate=1e9, direct_rate=300.0)
    assert found.requests_per_s <= 300
    assert found.streams <= 300
