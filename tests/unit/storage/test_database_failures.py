from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from inferd.errors import StorageError
from inferd.storage import database as database_module
from inferd.storage.database import (
    FLUSH_ATTEMPTS_MAX,
    Cursor,
    Database,
    Flush,
)
from tests.fakes.running_database import running
from tests.unit.storage.rows import Open, insert, numbers

pytestmark = pytest.mark.real_time


def fill_disk(cursor: Cursor) -> None:
    """From now on the file may not grow, as on a full disk."""
    (pages,) = cursor.execute("PRAGMA page_count").fetchone()
    cursor.execute(f"PRAGMA max_page_count = {pages}")


def free_disk(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA max_page_count = 1000000").fetchall()


def big_insert(number: int, cursor: Cursor) -> None:
    insert(number, cursor)
    cursor.execute("UPDATE keys SET name = ? WHERE id = ?", ("x" * 65_536, f"key_{number}"))


async def test_a_full_queue_ends_the_service_and_keeps_what_was_taken(
    open_database: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database_module, "WRITES_QUEUED_MAX", 3)
    async with open_database() as db:
        taken = [db.post(partial(insert, number)) for number in range(5)]
        assert taken == [True, True, True, False, False]
        assert db.rows_lost == 2
        with pytest.raises(StorageError, match="no more are kept"):
            await db.run()
        with pytest.raises(StorageError, match="no more are kept"):
            await db.write(partial(insert, 9))
        assert await numbers(db) == [0, 1, 2]
    assert caplog.text.count("lost from now on") == 1
    assert "2 rows were lost since start" in caplog.text


async def test_rows_wait_out_a_full_disk(open_file: Open, caplog: pytest.LogCaptureFixture) -> None:
    failed, written = asyncio.Event(), asyncio.Event()

    def observe(flush: Flush) -> None:
        (failed if flush.retried else written).set()

    async with running(open_file(observe=observe)) as db:
        await db.write(fill_disk)
        written.clear()
        for number in range(20):
            db.post(partial(big_insert, number))
        await failed.wait()
        assert db.queued == 20
        await db._writer.call(free_disk)
        await written.wait()
        assert await numbers(db) == list(range(20))
        assert db.rows_lost == 0
    assert "flush 1 of 6 failed, 20 usage rows wait" in caplog.text


async def test_an_awaited_write_on_a_full_disk_fails_at_once(open_file: Open) -> None:
    async with running(open_file()) as db:
        await db.write(fill_disk)
        with pytest.raises(StorageError, match=r"inferd\.db: .*full\. Free space"):
            await db.write(partial(big_insert, 1))
        await db._writer.call(free_disk)
        await db.write(partial(big_insert, 1))


async def test_a_disk_that_stays_full_ends_the_service_with_the_reason(
    open_file: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database_module, "RETRY_WAIT_S", 0.001)
    databases: list[Database] = []

    async def serve() -> None:
        async with open_file() as db, asyncio.TaskGroup() as group:
            databases.append(db)
            group.create_task(db.run())
            await db.write(fill_disk)
            for number in range(20):
                db.post(partial(big_insert, number))

    with pytest.raises(ExceptionGroup) as caught:
        await serve()
    messages = [str(error) for error in caught.value.exceptions]
    assert any(f"could not be written in {FLUSH_ATTEMPTS_MAX} attempts" in m for m in messages)
    assert all("Free space" in message for message in messages)
    assert databases[0].rows_lost == 20
    assert "20 rows lost" in caplog.text


async def test_leaving_with_a_full_disk_raises(
    open_file: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "RETRY_WAIT_S", 0.001)

    async def leave() -> None:
        async with open_file() as db:
            await db._writer.call(lambda raw: fill_disk(raw.cursor()))
            db.post(partial(big_insert, 1))

    with pytest.raises(StorageError, match="Free space"):
        await leave()


async def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    before = threading.active_count()

    async def fail_inside(name: str) -> None:
        async with Database.open(tmp_path / name):
            assert threading.active_count() == before + 3
            raise LookupError

    with pytest.raises(LookupError):
        await fail_inside("inferd.db")
    assert threading.active_count() == before
    (tmp_path / "broken.db").write_bytes(b"no database " * 999)
    with pytest.raises(StorageError):
        await fail_inside("broken.db")
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b"no database " * 999), "restore it from a backup"),
        (lambda path: path.mkdir(), "may write there"),
        (lambda path: None, "No such file or directory"),
    ],
    ids=["not a database", "a folder", "no folder"],
)
async def test_an_unusable_file_names_the_cause_and_the_next_step(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "missing" / "inferd.db"
    if "No such" not in message:
        path.parent.mkdir()
        make(path)
    with pytest.raises(StorageError, match=message) as caught:
        async with Database.open(path):
            pass
    assert str(path) in caught.value.message


async def test_a_damaged_page_is_an_error_not_a_wrong_answer(tmp_path: Path) -> None:
    path = tmp_path / "inferd.db"
    async with running(Database.open(path)) as db:
        for number in range(500):
            db.post(partial(insert, number))
    damaged = bytearray(path.read_bytes())
    damaged[4096:] = b"\xff" * (len(damaged) - 4096)
    path.write_bytes(damaged)
    with pytest.raises(StorageError, match="restore it from a backup"):
        async with Database.open(path) as db:
            await numbers(db)


async def test_a_database_held_by_another_process_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferd.storage.connection.BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "inferd.db"
    async with running(Database.open(path)) as db:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="Another process holds the database"):
            await db.write(partial(insert, 1))
        other.close()
        await db.write(partial(insert, 1))
