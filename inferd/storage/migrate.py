"""Brings a database to the newest schema: numbered, forward-only files of `migrations/`.

`PRAGMA user_version` is the number of the last one applied. Each runs in one transaction that
also moves the number, so a crash leaves the version before. A database newer than the code is
refused. `schema.sql` beside the migrations is what they add up to, made by `write_schema`.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from inferd.errors import StorageError
from inferd.storage.transaction import storage_error

_FILE_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step; `version` is what `user_version` becomes."""

    version: int
    name: str
    sql: str


def load_migrations() -> tuple[Migration, ...]:
    """All migrations this inferd ships, in order, numbered 1, 2, 3 without a gap."""
    found = {}
    for file in _folder().iterdir():
        if match := _FILE_NAME.fullmatch(file.name):
            version = int(match[1])
            assert version not in found, f"two migrations have the number {version}"
            found[version] = Migration(version, file.name, file.read_text(encoding="utf-8"))
    assert sorted(found) == list(range(1, len(found) + 1)), "migrations are numbered without gaps"
    return tuple(found[version] for version in sorted(found))


def migrate(connection: sqlite3.Connection, path: str, migrations: Sequence[Migration]) -> int:
    """Apply what is missing and return the version reached. The connection is in autocommit mode.

    Raises StorageError, with the database as it was before the failing step, when a step fails or
    the database was made by a newer inferd.
    """
    newest = len(migrations)
    version = _version(connection)
    if version > newest:
        raise StorageError(
            f"{path}: the database has schema version {version}, this inferd knows {newest}: a "
            "newer inferd has used it. Run that version again, or restore a backup made before it."
        )
    for migration in migrations[version:]:
        try:
            _apply(connection, migration)
        except (sqlite3.Error, StorageError) as error:
            cause = storage_error(error, path).message
            raise StorageError(
                f"Migration {migration.name} was undone, the database stays at version "
                f"{migration.version - 1}. {cause}"
            ) from error
    return newest


def schema_sql() -> str:
    """What all migrations add up to, as SQL text."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        version = migrate(connection, ":memory:", load_migrations())
        rows = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
        ).fetchall()
    statements = "\n\n".join(f"{sql};" for (sql,) in rows)
    return (
        "-- Generated: the schema after the last migration. Never edited by hand; made with\n"
        "-- python -c 'from inferd.storage import migrate; migrate.write_schema()'\n"
        f"PRAGMA user_version = {version};\n\n{statements}\n"
    )


def write_schema() -> None:
    """Write `schema.sql` beside the migrations of a checkout."""
    folder = _folder()
    assert isinstance(folder, Path), "an installed package is not edited"
    (folder / "schema.sql").write_text(schema_sql(), encoding="utf-8")


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in _statements(migration.sql):
            connection.execute(statement)
            if not connection.in_transaction:
                raise StorageError(f"{migration.name} ends the transaction it runs in.")
        connection.execute(f"PRAGMA user_version = {migration.version}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.rollback()


def _statements(sql: str) -> Iterator[str]:
    """Split at the ends of lines that end a statement (`executescript` would commit first)."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _folder() -> Traversable:
    """`inferd/migrations` of an installed package, or the top of an editable checkout."""
    package = files("inferd")
    shipped = package / "migrations"
    if shipped.is_dir():
        return shipped
    assert isinstance(package, Path), "a package in an archive ships its migrations"
    return package.parent / "migrations"
