"""Slots over time. Goal: what was used and what was idle is all there was, at any moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.routing.occupancy import Occupancy, Worked

STEPS = st.lists(
    st.tuples(
        st.floats(0.0, 1_000.0),
        st.sampled_from(("take", "take batch", "give", "resize", "look")),
        st.integers(1, 4),
    ),
    max_size=40,
)


def test_a_slot_second_is_one_slot_for_one_second() -> None:
    slots = Occupancy(4, 100.0)
    slots.changed(1, 110.0, batch=False)
    slots.changed(2, 115.0, batch=True)
    slots.changed(-1, 120.0, batch=False)
    slots.changed(-2, 130.0, batch=True)
    worked = slots.worked(140.0)
    assert worked == Worked(
        slot_s=160.0, interactive_s=10.0, batch_s=30.0, worker_s=40.0, busy_s=20.0
    )
    assert worked.idle_s == 120.0


@given(STEPS)
def test_used_and_idle_make_all_there_was(steps: list[tuple[float, str, int]]) -> None:
    slots, now = Occupancy(4, 0.0), 0.0
    held: list[tuple[int, bool]] = []
    before = Worked()
    for elapsed_s, what, number in steps:
        now += elapsed_s
        if what == "give" and held:
            count, batch = held.pop()
            slots.changed(-count, now, batch=batch)
        elif what == "resize":
            slots.resized(number, now)
        elif what.startswith("take"):
            held.append((number, what == "take batch"))
            slots.changed(number, now, batch=what == "take batch")
        worked = slots.worked(now)
        more = worked.since(before)
        assert before.plus(more).slot_s == pytest.approx(worked.slot_s)
        assert worked.interactive_s + worked.batch_s + worked.idle_s == pytest.approx(worked.slot_s)
        assert worked.worker_s == pytest.approx(now)
        assert worked.busy_s <= worked.worker_s + 1e-9
        before = worked
