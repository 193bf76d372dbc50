"""What the kernel tells of processes, in /proc: who is who, what they have used, what is open.

Owns nothing and signals nobody. A number alone names no process: it does together with the start
time and the boot, or by the mark that an engine's processes carry in their environment.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
ENDED: Final = frozenset("ZX")
"""Process states of a main thread that runs no more; another thread of it still may."""
MARK: Final = "INFERD_ENGINE"
"""The variable that holds the mark of one engine's life, in each of its processes."""
UNKNOWN_STATUS: Final = 256
"""Stands for the exit code of an engine that another inferd started: only a parent is told."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Which process leads a worker's session. Equal start and boot: the same process, not a heir.

    `pid` is also the number of its group and session. `start_ticks` is the kernel's start time,
    in clock ticks since the boot named by `boot_id`.
    """

    worker_id: str
    pid: int
    start_ticks: int
    boot_id: str
    port: int
    spec_hash: str
    mark: str = ""
    """What its processes carry in their environment; "": nothing."""

    def is_current(self) -> bool:
        """Whether the process of this record still has its number (also as a zombie)."""
        look = look_at(self.pid)
        started = None if look is None else look.start_ticks
        return started == self.start_ticks and self.boot_id == boot_id()


@dataclass(frozen=True, slots=True)
class Activity:
    """What a session has done so far: processor seconds and bytes read by its live processes."""

    cpu_s: float
    read_bytes: int


@dataclass(frozen=True, slots=True)
class Look:
    running: bool
    group: int
    cpu_ticks: int
    start_ticks: int


def boot_id() -> str:
    """The kernel's name for this boot: process numbers and times mean nothing beyond it."""
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def session_members(session: int) -> list[int]:
    """Live processes of a session, the leader included. Zombies are not counted."""
    members: list[int] = []
    for name in os.listdir(PROC):  # noqa: PTH208 - Path objects for every process are slow
        if not name.isdigit():
            continue
        pid = int(name)
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) != session:
                continue
            look = look_at(pid)
            if look is not None and look.running:
                members.append(pid)
    return members


def marked(mark: str) -> list[int]:
    """Live processes that carry this mark, in whatever session they are. None carries "".

    Only those of this user can be looked at; nobody else's can carry it.
    """
    if not mark:
        return []
    wanted = f"{MARK}={mark}".encode()
    return [
        pid
        for name in os.listdir(PROC)  # noqa: PTH208
        if name.isdigit() and wanted in environment(pid := int(name)) and is_running(pid)
    ]


def environment(pid: int) -> list[bytes]:
    """What a process was started with, `NAME=value` each; [] when it cannot be read."""
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    look = look_at(pid)
    return look is not None and look.running


def look_at(pid: int) -> Look | None:
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, so the fields are counted from its end on.
    fields = stat.rpartition(")")[2].split()
    return Look(
        running=fields[0] not in ENDED or int(fields[17]) > 1,
        group=int(fields[2]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start_ticks=int(fields[19]),
    )


def bytes_read(pid: int) -> int:
    try:
        counters = (PROC / str(pid) / "io").read_text(encoding="ascii")
    except OSError:
        return 0
    values = dict(line.split(": ") for line in counters.splitlines())
    # Bytes asked for by read() and bytes fetched from storage: mapped weights show in the latter.
    return int(values["rchar"]) + int(values["read_bytes"])


def open_files(pid: int, begin: str) -> Iterator[str]:
    """Paths of the files that a process has open and that begin so."""
    try:
        descriptors = list((PROC / str(pid) / "fd").iterdir())
    except OSError:
        return  # it has just ended
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            name = str(descriptor.readlink())
            if name.startswith(begin):
                yield name
