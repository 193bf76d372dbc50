from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.inference import Endpoint, Outcome, Priority
from inferd.storage import usage
from inferd.storage.database import Database
from inferd.storage.usage import Dimension, UsageFilter, UsageRow, UsageSum
from tests.fakes.inline_database import InlineDatabase
from tests.fakes.running_database import running
from tests.unit.storage.rows import Open

ROW = UsageRow(
    request_id="req_0",
    response_id="chatcmpl-0",
    ts_us=1_000_000,
    team="search",
    key_id="key_1",
    model="chat-large",
    version="2026-11",
    pool="chat-large@2026-11",
    worker="chat-large-2026-11-0",
    priority=Priority.INTERACTIVE,
    endpoint=Endpoint.CHAT,
    stream=True,
    prompt_tokens=100,
    cached_tokens=64,
    completion_tokens=10,
    reasoning_tokens=3,
    estimated=False,
    queue_wait_s=0.25,
    ttft_s=0.5,
    tpot_s=None,
    duration_s=1.5,
    placement_reason="least_tokens",
    attempts=1,
    outcome=Outcome.COMPLETED,
    error_code=None,
)
REFUSED = replace(
    ROW,
    request_id="req_1",
    response_id=None,
    worker=None,
    placement_reason=None,
    ttft_s=None,
    prompt_tokens=0,
    cached_tokens=0,
    completion_tokens=0,
    reasoning_tokens=0,
    attempts=0,
    outcome=Outcome.REFUSED,
    error_code="overloaded",
)


async def recorded(db: Database, *rows: UsageRow) -> None:
    for row in rows:
        assert usage.record(db, row)
    await db.flush()


@pytest.mark.real_time
async def test_a_row_comes_back_as_it_was(open_database: Open) -> None:
    async with running(open_database()) as db:
        await recorded(db, ROW, REFUSED)
        assert await usage.rows(db) == [REFUSED, ROW]


async def test_a_request_is_billed_once(caplog: pytest.LogCaptureFixture) -> None:
    async with running(InlineDatabase.open()) as db:
        await recorded(db, ROW, replace(ROW, prompt_tokens=999), replace(ROW, request_id="req_2"))
        assert await usage.sums(db, by=()) == [
            UsageSum(
                group=(),
                requests=2,
                prompt_tokens=200,
                cached_tokens=128,
                completion_tokens=20,
                reasoning_tokens=6,
                estimated_requests=0,
            )
        ]
        assert db.rows_lost == 1
    assert "Request req_0 is in the ledger already" in caplog.text


async def test_sums_by_team_and_model_are_the_default() -> None:
    rows = [
        replace(ROW, request_id=f"req_{number}", team=team, model=model, estimated=number == 0)
        for number, (team, model) in enumerate(
            [("ads", "small"), ("ads", "large"), ("search", "large"), ("search", "large")]
        )
    ]
    async with running(InlineDatabase.open()) as db:
        await recorded(db, *rows)
        found = await usage.sums(db)
    assert [(total.group, total.requests, total.estimated_requests) for total in found] == [
        (("ads", "large"), 1, 0),
        (("ads", "small"), 1, 1),
        (("search", "large"), 2, 0),
    ]


async def test_sums_of_nothing_are_zero() -> None:
    async with running(InlineDatabase.open()) as db:
        (total,) = await usage.sums(db, by=())
        assert (total.requests, total.prompt_tokens, total.estimated_requests) == (0, 0, 0)
        assert await usage.sums(db) == []


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (UsageFilter(), ["a", "b", "c"]),
        (UsageFilter(team="ads"), ["c"]),
        (UsageFilter(model="small"), ["b", "c"]),
        (UsageFilter(team="search", model="small"), ["b"]),
        (UsageFilter(key_id="key_2"), ["c"]),
        (UsageFilter(since_us=20), ["b", "c"]),
        (UsageFilter(until_us=20), ["a"]),
        (UsageFilter(since_us=20, until_us=30), ["b"]),
        (UsageFilter(team="nobody"), []),
    ],
)
async def test_filters(where: UsageFilter, expected: list[str]) -> None:
    async with running(InlineDatabase.open()) as db:
        await recorded(
            db,
            replace(ROW, request_id="a", ts_us=10),
            replace(ROW, request_id="b", ts_us=20, model="small"),
            replace(ROW, request_id="c", ts_us=30, model="small", team="ads", key_id="key_2"),
        )
        assert sorted(row.request_id for row in await usage.rows(db, where)) == expected
        (total,) = await usage.sums(db, where, by=())
        assert total.requests == len(expected)


async def test_lists_are_newest_first_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "ROWS_MAX", 3)
    async with running(InlineDatabase.open()) as db:
        await recorded(
            db, *(replace(ROW, request_id=str(number), ts_us=number) for number in range(5))
        )
        assert [row.request_id for row in await usage.rows(db, limit=2)] == ["4", "3"]
        assert len(await usage.rows(db, limit=1_000_000)) == 3


async def test_only_known_dimensions_reach_the_sql() -> None:
    async with running(InlineDatabase.open()) as db:
        with pytest.raises(AssertionError, match="not a dimension"):
            await usage.sums(db, by=("1; DROP TABLE requests",))  # type: ignore[arg-type]


async def test_a_teams_sums_use_an_index() -> None:
    async with running(InlineDatabase.open()) as db:
        plan = await db.read(
            "EXPLAIN QUERY PLAN SELECT sum(prompt_tokens) FROM requests "
            "WHERE team = 'x' AND ts_us >= 1"
        )
    assert "requests_by_team" in plan[0]["detail"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ads", "search"]),
            st.sampled_from(["small", "large"]),
            st.integers(0, 10**9),
            st.integers(0, 10**9),
        ),
        max_size=40,
    ),
    st.sampled_from([(), ("team",), ("model", "team"), ("worker",)]),
)
async def test_sums_add_up_to_the_token(
    requests: list[tuple[str, str, int, int]], by: tuple[Dimension, ...]
) -> None:
    async with running(InlineDatabase.open()) as db:
        await recorded(
            db,
            *(
                replace(
                    ROW,
                    request_id=str(number),
                    team=team,
                    model=model,
                    prompt_tokens=prompt,
                    completion_tokens=completion,
                )
                for number, (team, model, prompt, completion) in enumerate(requests)
            ),
        )
        found = await usage.sums(db, by=by)
    assert sum(total.requests for total in found) == len(requests)
    assert sum(total.prompt_tokens for total in found) == sum(row[2] for row in requests)
    assert sum(total.completion_tokens for total in found) == sum(row[3] for row in requests)
