from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from inferd.errors import StorageError
from inferd.storage import migrate as migrate_module
from inferd.storage.database import Database
from inferd.storage.migrate import Migration, load_migrations, migrate, schema_sql

ROOT = Path(__file__).parents[3]

FIRST = Migration(1, "0001_first.sql", "CREATE TABLE a (x INTEGER) STRICT;\n")
SECOND = Migration(
    2,
    "0002_second.sql",
    "-- A comment; with a semicolon.\n"
    "INSERT INTO a VALUES (1);\n"
    "CREATE TRIGGER t AFTER INSERT ON a BEGIN\n  DELETE FROM a;\nEND;\n",
)
BROKEN = Migration(3, "0003_broken.sql", "INSERT INTO a VALUES (2);\nINSERT INTO b VALUES (1);\n")


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as connection:
        yield connection


def version(connection: sqlite3.Connection) -> int:
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    return int(found)


def test_the_schema_file_is_what_the_migrations_add_up_to() -> None:
    written = (ROOT / "migrations" / "schema.sql").read_text()
    assert written == schema_sql(), "run inferd.storage.migrate.write_schema()"


def test_the_schema_file_alone_makes_the_same_database() -> None:
    with closing(sqlite3.connect(":memory:")) as one, closing(sqlite3.connect(":memory:")) as other:
        one.executescript(schema_sql())
        other.isolation_level = None
        migrate(other, ":memory:", load_migrations())
        query = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name"
        assert one.execute(query).fetchall() == other.execute(query).fetchall()
        assert version(one) == version(other) == len(load_migrations())


def test_every_table_is_strict() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, ":memory:", load_migrations())
        lax = connection.execute(
            "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' "
            "AND NOT strict AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
    assert not lax


def test_migrations_run_once_and_in_order(connection: sqlite3.Connection) -> None:
    assert migrate(connection, "x.db", [FIRST]) == 1
    assert migrate(connection, "x.db", [FIRST, SECOND]) == 2
    assert migrate(connection, "x.db", [FIRST, SECOND]) == 2
    assert connection.execute("SELECT x FROM a").fetchall() == [(1,)]


def test_a_bad_migration_is_undone_whole_and_says_where(connection: sqlite3.Connection) -> None:
    with pytest.raises(StorageError) as caught:
        migrate(connection, "x.db", [FIRST, SECOND, BROKEN])
    message = caught.value.message
    assert "0003_broken.sql was undone, the database stays at version 2" in message
    assert "x.db: no such table: main.b" in message or "x.db: no such table: b" in message
    assert version(connection) == 2
    assert connection.execute("SELECT x FROM a").fetchall() == [(1,)]


def test_a_migration_may_not_end_its_transaction(connection: sqlite3.Connection) -> None:
    ends = Migration(1, "0001_ends.sql", "CREATE TABLE a (x INTEGER);\nCOMMIT;\n")
    with pytest.raises(StorageError, match="ends the transaction"):
        migrate(connection, "x.db", [ends])
    assert version(connection) == 0


def test_a_crash_in_the_middle_leaves_the_version_before(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, str(path), [FIRST])
        # What a killed process leaves: a transaction that was never committed.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO a VALUES (1)")
        connection.execute("PRAGMA user_version = 2")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert version(connection) == 1
        assert migrate(connection, str(path), [FIRST, SECOND]) == 2
        assert connection.execute("SELECT x FROM a").fetchall() == [(1,)]


@pytest.mark.real_time
async def test_a_database_newer_than_the_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "inferd.db"
    async with Database.open(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"inferd\.db: .*version 99.*a newer inferd has used it"):
        async with Database.open(path):
            pass
    assert path.read_bytes() == before


def test_a_gap_in_the_numbers_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0001_one.sql").write_text("")
    (tmp_path / "0003_three.sql").write_text("")
    (tmp_path / "schema.sql").write_text("")
    monkeypatch.setattr(migrate_module, "_folder", lambda: tmp_path)
    with pytest.raises(AssertionError, match="without gaps"):
        load_migrations()
