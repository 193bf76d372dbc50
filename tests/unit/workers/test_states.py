from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from inferd import clock
from inferd.metrics import Metrics
from inferd.workers import states
from inferd.workers.base import WorkerBase
from inferd.workers.states import TRANSITIONS, WorkerState, move


@dataclass
class Told:
    """An observer that writes down what it hears, and what could be read at that moment."""

    events: list[str] = field(default_factory=list)

    def worker_changed(self, worker: WorkerBase, before: WorkerState, after: WorkerState) -> None:
        self.events.append(f"observer {before} -> {after}, state {worker.state}")


class Thing:
    """The least that `move` needs."""

    def __init__(self, state: WorkerState) -> None:
        self.id, self.pool, self.reason = "chat-1-1", "chat@1", "so far"
        self.state = state
        self.since, self.since_us = clock.monotonic(), 0
        self.observer = Told()
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"worker": self.id, **labels})


def moved(thing: Thing, to: WorkerState, reason: str = "") -> None:
    move(cast("WorkerBase", thing), to, reason)


def drawn() -> set[tuple[str, str]]:
    """The arrows of the module's docstring."""
    assert states.__doc__ is not None
    arrows: set[tuple[str, str]] = set()
    for line in states.__doc__.splitlines():
        if "->" not in line:
            continue
        drawing = re.split(r"\s{3,}(?=[a-z])", line.strip())[0]
        steps = [re.findall(r"[A-Z]+", step) for step in drawing.split("->")]
        arrows |= {(a, b) for first, then in pairwise(steps) for a in first for b in then}
    return arrows


def test_the_drawing_is_the_table() -> None:
    table = {(before.name, after.name) for before in TRANSITIONS for after in TRANSITIONS[before]}
    assert drawn() == table


def test_every_state_can_be_left_and_reached() -> None:
    assert set(TRANSITIONS) == set(WorkerState)
    assert set().union(*TRANSITIONS.values()) == set(WorkerState)


@given(st.sampled_from(WorkerState), st.sampled_from(WorkerState))
async def test_an_illegal_transition_changes_nothing(
    before: WorkerState, after: WorkerState
) -> None:
    thing = Thing(before)
    if after in TRANSITIONS[before]:
        moved(thing, after, "why")
        assert (thing.state, thing.reason) == (after, "why")
        assert thing.observer.events == [f"observer {before} -> {after}, state {after}"]
    else:
        with pytest.raises(AssertionError, match=f"no transition from {before} to {after}"):
            moved(thing, after, "why")
        assert (thing.state, thing.reason) == (before, "so far")
        assert thing.observer.events == []


async def test_a_move_is_told_to_observer_then_metrics_then_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    order: list[str] = []
    thing = Thing(WorkerState.LOADING)

    class First:
        def worker_changed(self, *_: object) -> None:
            order.append(f"observer, metric {thing.sample('inferd_worker_state', state='failed')}")

    class Last(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            order.append(f"log, metric {thing.sample('inferd_worker_state', state='failed')}")

    thing.observer = First()  # type: ignore[assignment]
    handler = Last()
    states.log.addHandler(handler)
    try:
        moved(thing, WorkerState.FAILED, "no model")
    finally:
        states.log.removeHandler(handler)
    assert order == ["observer, metric None", "log, metric 1.0"]
    record = caplog.records[-1]
    assert record.levelname == "ERROR"
    assert record.getMessage() == "worker chat-1-1 is failed: no model"


async def test_a_phase_of_the_start_is_measured() -> None:
    thing = Thing(WorkerState.LOADING)
    thing.since -= 17
    moved(thing, WorkerState.WARMING)
    count = thing.registry.get_sample_value("inferd_worker_start_seconds_sum", {"phase": "loading"})
    assert count == pytest.approx(17)
