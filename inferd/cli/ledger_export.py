"""The ledger's rows as CSV, JSON lines or Parquet: one column a column of the ledger, no text."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, get_type_hints

from inferd.errors import StartError
from inferd.storage.reading import Reading
from inferd.storage.usage import COLUMNS, UsageFilter, UsageRow, export_query

ROWS_AT_ONCE: Final = 10_000
"""Rows of a Parquet row group, and of one look."""
_BOOLEANS: Final = ("stream", "estimated")

Row = dict[str, Any]


async def write(db: Reading, where: UsageFilter, format_: str, out: Path | None) -> int:
    """Write all rows that match; how many they were. A file appears whole or not at all.

    Raises:
        StartError: Parquet is not installed.
    """
    rows = _rows(db, where)
    if format_ == "parquet":
        assert out is not None
        return _write_parquet(rows, out)
    with _opened(out) as file:
        return _write_csv(rows, file) if format_ == "csv" else _write_lines(rows, file)


def _rows(db: Reading, where: UsageFilter) -> Iterator[Row]:
    sql, parameters = export_query(where)
    for found in db.stream(sql, parameters):
        row = dict(found)
        for name in _BOOLEANS:
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


def _write_csv(rows: Iterator[Row], file: IO[str]) -> int:
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
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


def _write_parquet(rows: Iterator[Row], out: Path) -> int:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise StartError(
            "Parquet needs pyarrow, which is not installed: pip install 'inferd[parquet]', or"
            " use --format csv."
        ) from error
    kinds = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    hints = get_type_hints(UsageRow)
    schema = pa.schema([(name, kinds[_plain(hints[name])]) for name in COLUMNS])
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
