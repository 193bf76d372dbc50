"""Hours of capacity. Goal: what is added is summed in its hour, for as long as hours are kept."""

from __future__ import annotations

import pytest

from inferd.storage import capacity
from inferd.storage.capacity import KEPT_DAYS, Capacity, CapacityFilter
from inferd.storage.rollup import DAY_HOURS, HOUR_US
from tests.fakes.running_database import running
from tests.unit.storage.rows import Open

USED = Capacity(slot_us=100, interactive_us=30, batch_us=20, worker_us=10, busy_us=5)
DAY_US = DAY_HOURS * HOUR_US
START_US = 20_000 * DAY_US


@pytest.mark.real_time
async def test_hours_are_summed_by_pool_hour_and_day(open_database: Open) -> None:
    async with running(open_database()) as db:
        for at_us in (START_US, START_US + 1, START_US + HOUR_US, START_US + DAY_US):
            capacity.add(db, at_us, [("chat@1", USED), ("chat@1/decode", USED), ("code@2", USED)])
        await db.flush()
        whole = dict(await capacity.sums(db, CapacityFilter()))
        assert whole["chat@1",].slot_us == 400
        assert set(whole) == {("chat@1",), ("chat@1/decode",), ("code@2",)}
        found = await capacity.sums(db, CapacityFilter(model="code"), ("hour", "pool"))
        hours = {group[0]: used.batch_us for group, used in found}
        assert hours == {START_US: 40, START_US + HOUR_US: 20, START_US + DAY_US: 20}
        days = await capacity.sums(
            db, CapacityFilter(version="1", until_us=START_US + DAY_US), ("day", "pool")
        )
        assert [(group, used.busy_us) for group, used in days] == [
            ((START_US, "chat@1"), 15),
            ((START_US, "chat@1/decode"), 15),
        ]


@pytest.mark.real_time
async def test_what_is_too_old_goes(open_database: Open) -> None:
    async with running(open_database()) as db:
        capacity.add(db, START_US, [("chat@1", USED)])
        capacity.add(db, START_US + KEPT_DAYS * DAY_US, [("chat@1", USED)])
        await db.flush()
        ((_, kept),) = await capacity.sums(db, CapacityFilter())
        assert kept.slot_us == 200
        capacity.add(db, START_US + KEPT_DAYS * DAY_US + HOUR_US, [("chat@1", USED)])
        await db.flush()
        ((_, kept),) = await capacity.sums(db, CapacityFilter())
        assert kept.slot_us == 200
