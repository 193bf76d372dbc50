"""Engines that an inferd of a folder has started, whoever is their parent now."""

from __future__ import annotations

import os
import select
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from inferd.workers.process_table import MARK, environment, is_running

ENDS_S_MAX = 20.0


def engines_of(folder: Path) -> list[int]:
    """Live processes that carry a mark of ours and run below `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        with suppress(OSError):
            ours = any(line.startswith(f"{MARK}=".encode()) for line in environment(pid))
            if ours and is_running(pid) and (entry / "cwd").readlink().is_relative_to(folder):
                found.append(pid)
    return sorted(found)


def end_process(pid: int) -> None:
    """SIGKILL to a process that is nobody's child here; returns when it has ended."""
    descriptor = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        ended, _, _ = select.select([descriptor], [], [], ENDS_S_MAX)
        assert ended, f"process {pid} does not end"
    finally:
        os.close(descriptor)


@contextmanager
def none_left(folder: Path) -> Iterator[None]:
    """Nothing of `folder` runs at the end; after a failure it is killed."""
    try:
        yield
        assert engines_of(folder) == []
    finally:
        for pid in engines_of(folder):
            os.kill(pid, signal.SIGKILL)


def recorded(state: Path) -> list[sqlite3.Row]:
    """The engines that the database in this state folder remembers."""
    with _opened(state) as connection:
        return connection.execute("SELECT * FROM workers ORDER BY started_us").fetchall()


def rewrite(state: Path, sql: str, *parameters: object) -> None:
    """Change what a database remembers while no inferd has it."""
    with _opened(state) as connection:
        connection.execute(sql, parameters)
        connection.commit()


@contextmanager
def _opened(state: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(state / "inferd.db")
    connection.row_factory = sqlite3.Row
    try:
        yield connection
    finally:
        connection.close()
