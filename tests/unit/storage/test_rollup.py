"""The sums by the hour. Goal: whatever was rolled up or deleted, the sums are those of the rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.storage import rollup, usage
from inferd.storage.rollup import HOUR_US, HourFilter
from tests.fakes.inline_database import InlineDatabase
from tests.fakes.running_database import running
from tests.unit.storage.test_usage import ROW, recorded


async def test_rows_are_summed_once_wherever_they_are() -> None:
    async with running(InlineDatabase.open()) as db:
        assert await rollup.sums(db, by=()) == []
        await recorded(db, *(replace(ROW, request_id=str(n), cost_pico=n) for n in range(5)))
        before = await rollup.sums(db)
        assert await rollup.roll_up(db) == 5
        assert await rollup.sums(db) == before
        assert await rollup.roll_up(db) == 0
        await recorded(db, replace(ROW, request_id="5", cost_pico=5))
        (total,) = await rollup.sums(db)
        assert (total.group, total.requests, total.cost_pico) == (("search",), 6, 15)


async def test_sums_outlive_their_rows() -> None:
    async with running(InlineDatabase.open()) as db:
        await recorded(db, *(replace(ROW, request_id=str(n), ts_us=n) for n in range(6)))
        before = await rollup.sums(db)
        assert await rollup.delete_before(db, 4) == 0, "what is not summed is kept"
        await rollup.roll_up(db)
        assert await rollup.delete_before(db, 1_000) == 5, "the marked row is kept"
        assert [row.request_id for row in await usage.rows(db)] == ["5"]
        assert await rollup.sums(db) == before
        await recorded(db, replace(ROW, request_id="6"))
        await rollup.roll_up(db)
        (total,) = await rollup.sums(db)
        assert total.requests == 7


async def test_a_vacuum_changes_nothing() -> None:
    async with running(InlineDatabase.open()) as db:
        await recorded(db, *(replace(ROW, request_id=str(n), ts_us=n) for n in range(6)))
        await rollup.roll_up(db)
        await rollup.delete_before(db, 3)
        await db._writer.call(lambda connection: connection.execute("VACUUM"))
        await recorded(db, replace(ROW, request_id="6"))
        assert await rollup.roll_up(db) == 1
        (total,) = await rollup.sums(db)
        assert total.requests == 7


async def test_sums_may_be_larger_than_an_integer_of_the_file() -> None:
    large = 2**63 - 1
    async with running(InlineDatabase.open()) as db:
        rows = [
            replace(ROW, request_id=str(n), ts_us=n * HOUR_US, cost_pico=large) for n in range(3)
        ]
        await recorded(db, *rows)
        for _ in range(2):
            (total,) = await rollup.sums(db)
            assert total.cost_pico == 3 * large
            await rollup.roll_up(db)


@pytest.mark.parametrize(
    ("since", "until", "hours"),
    [
        (None, None, [0, 1, 2]),
        (1, None, [1, 2]),
        (1.5, None, [1, 2]),
        (1, 2, [1]),
        (0, 1.5, [0, 1]),
    ],
)
async def test_a_range_is_of_whole_hours(
    since: float | None, until: float | None, hours: list[int]
) -> None:
    where = HourFilter(
        since_us=None if since is None else int(since * HOUR_US),
        until_us=None if until is None else int(until * HOUR_US),
    )
    async with running(InlineDatabase.open()) as db:
        await recorded(
            db, *(replace(ROW, request_id=str(n), ts_us=n * HOUR_US + 5) for n in range(3))
        )
        for _ in range(2):
            found = await rollup.sums(db, where, ("hour",))
            assert [one.group[0] for one in found] == [hour * HOUR_US for hour in hours]
            await rollup.roll_up(db)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ads", "search"]),
            st.sampled_from(["interactive", "batch"]),
            st.integers(0, 50),
            st.integers(0, 10**9),
        ),
        max_size=30,
    ),
    st.integers(0, 30),
    st.integers(0, 50),
)
async def test_the_sums_are_those_of_the_rows(
    requests: list[tuple[str, str, int, int]], rolled: int, deleted_before: int
) -> None:
    rows = [
        replace(
            ROW,
            request_id=str(n),
            team=team,
            priority=priority,
            ts_us=hour * HOUR_US,
            prompt_tokens=tokens,
            cost_pico=tokens * 7,
        )
        for n, (team, priority, hour, tokens) in enumerate(requests)
    ]
    async with running(InlineDatabase.open()) as db:
        await recorded(db, *rows[:rolled])
        await rollup.roll_up(db)
        await rollup.delete_before(db, deleted_before * HOUR_US)
        await recorded(db, *rows[rolled:])
        found = await rollup.sums(db, by=("team", "priority", "day"))
    expected: dict[tuple[str, str, int], list[int]] = {}
    for row in rows:
        day = row.ts_us // (24 * HOUR_US) * 24 * HOUR_US
        total = expected.setdefault((row.team, row.priority, day), [0, 0, 0])
        total[:] = [total[0] + 1, total[1] + row.prompt_tokens, total[2] + row.cost_pico]
    assert {
        one.group: [one.requests, one.prompt_tokens, one.cost_pico] for one in found
    } == expected
