from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from inferd import clock
from inferd.errors import StorageError
from inferd.storage import database as database_module
from inferd.storage.database import (
    BATCH_WRITES_MAX,
    Cursor,
    Database,
    Flush,
)
from tests.fakes.inline_database import InlineDatabase
from tests.fakes.running_database import running
from tests.unit.storage.rows import Open, insert, numbers

pytestmark = pytest.mark.real_time


async def test_an_awaited_write_is_there_when_it_returns(open_database: Open) -> None:
    async with running(open_database()) as db:
        assert await db.write(partial(insert, 7)) == 7
        assert await numbers(db) == [7]


async def test_posted_writes_keep_their_order(open_database: Open) -> None:
    async with running(open_database()) as db:
        for number in range(1_000):
            assert db.post(partial(insert, number))
        await db.flush()
        assert await numbers(db) == list(range(1_000))
        assert db.queued == 0


async def test_writes_share_transactions(open_database: Open) -> None:
    flushes: list[Flush] = []
    async with running(open_database(observe=flushes.append)) as db:
        for number in range(600):
            db.post(partial(insert, number))
        await db.flush()
    assert [flush.written for flush in flushes] == [BATCH_WRITES_MAX, BATCH_WRITES_MAX, 89]
    assert all(flush.duration_s >= 0 and not flush.lost for flush in flushes)


async def test_a_lone_write_waits_no_longer_than_a_batch_may_take() -> None:
    async with running(InlineDatabase.open()) as db:
        started = clock.monotonic()
        await db.write(partial(insert, 1))
        assert clock.monotonic() - started < 1


async def test_one_bad_write_fails_alone(open_database: Open) -> None:
    async with running(open_database()) as db:
        results = await collect(db, [partial(insert, 1), partial(insert, 1), partial(insert, 2)])
        assert results[0] == 1
        assert isinstance(results[1], StorageError)
        assert "UNIQUE" in results[1].message
        assert results[2] == 2
        assert await numbers(db) == [1, 2]


async def test_what_an_operation_raises_reaches_its_awaiter_and_is_undone(
    open_database: Open,
) -> None:
    def half_done(cursor: Cursor) -> None:
        insert(1, cursor)
        raise LookupError("not today")

    async with running(open_database()) as db:
        with pytest.raises(LookupError, match="not today"):
            await db.write(half_done)
        assert await numbers(db) == []


async def test_a_bad_posted_row_is_logged_and_counted(
    open_database: Open, caplog: pytest.LogCaptureFixture
) -> None:
    flushes: list[Flush] = []
    async with running(open_database(observe=flushes.append)) as db:
        for number in (1, 1, 2):
            db.post(partial(insert, number))
        await db.flush()
        assert await numbers(db) == [1, 2]
        assert db.rows_lost == 1
    assert sum(flush.lost for flush in flushes) == 1
    assert "1 rows lost" in caplog.text
    assert "UNIQUE" in caplog.text


async def test_a_cancelled_awaiter_neither_loses_nor_doubles_its_write(open_database: Open) -> None:
    committed: list[int] = []
    async with running(open_database()) as db:
        async with asyncio.TaskGroup() as group:
            waiting = [
                group.create_task(db.write(partial(insert, number), committed.append))
                for number in range(50)
            ]
            await asyncio.sleep(0)
            for task in waiting[::2]:
                task.cancel()
        await db.flush()
        assert await numbers(db) == list(range(50))
        assert committed == list(range(50))
        assert [task.cancelled() for task in waiting] == [True, False] * 25


async def test_a_cancelled_awaiter_whose_write_failed_is_logged(
    open_database: Open, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(open_database()) as db:
        await db.write(partial(insert, 1))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(db.write(partial(insert, 1)))
            await asyncio.sleep(0)
            task.cancel()
        await db.flush()
        assert db.rows_lost == 1
    assert "UNIQUE" in caplog.text


async def test_what_follows_a_commit_happens_before_the_awaiter_goes_on(
    open_database: Open,
) -> None:
    seen: list[str] = []
    async with running(open_database()) as db:
        await db.write(partial(insert, 1), lambda number: seen.append(f"committed {number}"))
        seen.append("returned")
    assert seen == ["committed 1", "returned"]


async def test_a_fault_in_what_follows_a_commit_reaches_the_awaiter(open_database: Open) -> None:
    def fault(_: int) -> None:
        raise RuntimeError("our mistake")

    async with running(open_database()) as db:
        with pytest.raises(RuntimeError, match="our mistake"):
            await db.write(partial(insert, 1), fault)


async def test_leaving_writes_what_is_queued(tmp_path: Path) -> None:
    path = tmp_path / "inferd.db"
    async with Database.open(path) as db:
        for number in range(700):
            db.post(partial(insert, number))
    async with Database.open(path) as db:
        assert await numbers(db) == list(range(700))


async def test_leaving_while_the_writer_is_cut_off_in_a_flush_loses_nothing(
    open_database: Open,
) -> None:
    flushes: list[Flush] = []
    first = asyncio.Event()

    def observe(flush: Flush) -> None:
        flushes.append(flush)
        first.set()

    async with open_database(observe=observe) as db:
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(db.run())
            for number in range(2_000):
                db.post(partial(insert, number))
            await first.wait()
            writer.cancel()
        db.post(partial(insert, 2_000))
    assert sum(flush.written for flush in flushes) == 2_001
    assert not any(flush.lost for flush in flushes)


async def test_awaited_writes_of_a_cut_off_writer_are_settled_on_leaving(
    open_database: Open,
) -> None:
    async with asyncio.TaskGroup() as group, open_database() as db:
        task = group.create_task(db.write(partial(insert, 1)))
        await asyncio.sleep(0)
    assert task.result() == 1


async def test_a_closed_database_says_so(open_database: Open) -> None:
    async with running(open_database()) as db:
        pass
    with pytest.raises(StorageError, match="closed"):
        await db.write(partial(insert, 1))


async def test_readers_cannot_write(open_file: Open) -> None:
    async with open_file() as db:
        with pytest.raises(StorageError, match="readonly"):
            await db.read("DELETE FROM keys")


async def test_a_wrong_statement_names_the_file(open_database: Open) -> None:
    async with open_database() as db:
        with pytest.raises(StorageError, match=r"(inferd\.db|:memory:): no such table: absent"):
            await db.read("SELECT * FROM absent")


async def test_the_queue_of_awaited_writes_is_bounded(
    open_database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "WRITES_QUEUED_MAX", 3)
    async with open_database() as db:
        for number in range(3):
            db.post(partial(insert, number))
        with pytest.raises(StorageError, match="3 writes wait already"):
            await db.write(partial(insert, 4))


async def test_who_waits_for_the_writer_goes_on_when_it_has_caught_up(
    open_database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "WRITES_BEHIND", 2 * BATCH_WRITES_MAX)
    async with running(open_database()) as db:
        await db.caught_up()  # at once
        for number in range(3 * BATCH_WRITES_MAX):
            db.post(partial(insert, number))
        assert db.behind
        await db.caught_up()
        assert 0 < db.queued < 2 * BATCH_WRITES_MAX


async def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "inferd.db"
    async with running(Database.open(path)) as db:
        await db.write(partial(insert, 1))
        assert modes(tmp_path) == dict.fromkeys(
            ["inferd.db", "inferd.db-shm", "inferd.db-wal"], 0o600
        )


def modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


async def collect(db: Database, operations: list[Callable[[Cursor], int]]) -> list[object]:
    """What each of several writes of one batch came to."""

    async def settled(operation: Callable[[Cursor], int]) -> object:
        try:
            return await db.write(operation)
        except StorageError as error:
            return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(settled(operation)) for operation in operations]
    return [task.result() for task in tasks]
