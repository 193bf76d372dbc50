"""The ledger's rows, or the hours of capacity, as CSV, JSON lines or Parquet. No prompts in it."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, get_type_hints

from inferd.errors import StartError
from inferd.storage import capacity
from inferd.storage.reading import Reading
from inferd.storage.usage import COLUMNS, UsageFilter, UsageRow, export_query

ROWS_AT_ONCE: Final = 10_000
"""Rows of a Parquet row group, and of one look."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Query:
    """What to write: a SELECT, and the type of each of its columns."""

    sql: str
    parameters: dict[str, Any]
    columns: dict[str, type]


def ledger(where: UsageFilter) -> Query:
    """One column a column of the ledger."""
    hints = get_type_hints(UsageRow)
    return Query(*export_query(where), {name: _plain(hints[name]) for name in COLUMNS})


def hours(where: capacity.CapacityFilter) -> Query:
    """One row a pool and hour."""
    kinds: dict[str, type] = {name: str if name == "pool" else int for name in capacity.COLUMNS}
    return Query(*capacity.hours_query(where), kinds)


async def write(db: Reading, query: Query, format_: str, out: Path | None) -> int:
    """Write all rows that match; how many they were. A file appears whole or not at all.

    Raises:
        StartError: Parquet is not installed.
    """
    rows = _rows(db, query)
    if format_ == "parquet":
        assert out is not None
        return _write_parquet(rows, query.columns, out)
    with _opened(out) as file:
        if format_ == "csv":
            return _write_csv(rows, query.columns, file)
        return _write_lines(rows, file)


def _rows(db: Reading, query: Query) -> Iterator[Row]:
    booleans = [name for name, kind in query.columns.items() if kind is bool]
    for found in db.stream(query.sql, query.parameters):
        row = dict(found)
        for name in booleans:
            row[name] = bool(row[name])
        yield row


@contextmanager
def _opened(out: Path | None) -> Iterator[IO[str]]:
    if out is None:
        yield sys.stdout
        return
    unfinished = out.with_name(f"{out.name}.unfinished")
    try:
        with unfinished.open("w", encoding="utf-8", newline="") as file:
            yield file
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_csv(rows: Iterator[Row], columns: Iterable[str], file: IO[str]) -> int:
    writer = csv.DictWriter(file, list(columns), lineterminator="\n")
    writer.writeheader()
    count = 0
    for row in rows:
        writer.writerow(row)
        count += 1
    return count


def _write_lines(rows: Iterator[Row], file: IO[str]) -> int:
    count = 0
    for row in rows:
        file.write(json.dumps(row) + "\n")
        count += 1
    return count


def _write_parquet(rows: Iterator[Row], columns: Mapping[str, type], out: Path) -> int:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise StartError(
            "Parquet needs pyarrow, which is not installed: pip install 'inferd[parquet]', or"
            " use --format csv."
        ) from error
    kinds = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
    unfinished = out.with_name(f"{out.name}.unfinished")
    count = 0
    try:
        with parquet.ParquetWriter(unfinished, schema) as writer:
            while chunk := list(islice(rows, ROWS_AT_ONCE)):
                writer.write_table(pa.Table.from_pylist(chunk, schema))
                count += len(chunk)
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def _plain(hint: Any) -> type:  # noqa: ANN401 - a type, or one with None
    """The type of a column without its None."""
    parts = getattr(hint, "__args__", (hint,))
    (kind,) = (part for part in parts if part is not type(None))
    assert isinstance(kind, type)
    return kind
