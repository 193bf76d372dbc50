"""The gate of `scripts/test`: noise passes, a slide does not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest

from scripts.benchmarks import gate
from scripts.benchmarks.gate import REQUEST_X_MAX, ROUNDS_MAX, ROUNDS_MIN, STREAMS, us_per_event
from scripts.benchmarks.relay.contenders import INFERD, SPLICE, Running
from scripts.benchmarks.relay.native import Sample

BOTH = {name: Running(name, 1, "", None) for name in (SPLICE, INFERD)}
SPLICE_US = 15.0


def played(monkeypatch: pytest.MonkeyPatch, inferd: Iterator[float]) -> tuple[float, int]:
    """Rounds in which inferd's requests cost this much, and the splice's always the same."""
    monkeypatch.setattr(
        gate,
        "us_per_request",
        lambda one, _: SPLICE_US if one.name == SPLICE else SPLICE_US * next(inferd),
    )
    return gate.requests_x(BOTH, Path())


def test_noise_only_takes_more_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = REQUEST_X_MAX / 1.1
    ratio, rounds = played(monkeypatch, repeat(usual))
    assert rounds == ROUNDS_MIN
    assert ratio == pytest.approx(usual)
    busy = chain(repeat(usual * 1.5, ROUNDS_MIN + 3), repeat(usual))
    ratio, rounds = played(monkeypatch, busy)
    assert rounds == ROUNDS_MIN + 4
    assert ratio == pytest.approx(usual)


def test_a_slide_by_15_percent_stays_one_however_long_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = REQUEST_X_MAX / 1.1
    ratio, rounds = played(monkeypatch, repeat(usual * 1.15))
    assert ratio > REQUEST_X_MAX
    assert rounds == ROUNDS_MAX


def test_events_are_counted_while_all_streams_are_open() -> None:
    all_open = STREAMS.connections
    samples = [Sample(0, 0, 10, 0.0, 0), Sample(50, 0, all_open - 1, 0.4, 0)]
    samples += [
        Sample(100 + 100 * number, 0, all_open, 0.5 + 0.001 * number, 0) for number in range(9)
    ]
    samples.append(Sample(5_000, 0, 3, 9.0, 0))
    assert us_per_event(samples) == pytest.approx([10.0, 10.0])
