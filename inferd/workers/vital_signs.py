"""What the kernel tells of one engine's processes: alive, stopped, processor time, memory.

Knows them by number and start time from when the engine was ready; a few small files a look, so it
may be asked twice a second on the loop.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferd.workers.process import CLOCK_TICKS_PER_S
from inferd.workers.process_table import ENDED, PROC, session_members
from inferd.workers.watchdog import Processes

PART_TITLE: Final = "sglang::"
"""How the engine's own processes call themselves: they live as long as it does."""
STOPPED: Final = frozenset("Tt")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
NAME_CHARS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    cpu_ticks: int
    start_ticks: int
    resident_pages: int


@dataclass(frozen=True, slots=True)
class _Part:
    pid: int
    start_ticks: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.pid})"


class Parts:
    """The leader of an engine's session and those of its processes that it cannot live without."""

    def __init__(self, leader: int) -> None:
        """To be made when the engine is ready: then all its parts are there."""
        named = {pid: _title(pid) for pid in session_members(leader)}
        self._parts = [
            _Part(pid, stat.start_ticks, "the leader" if pid == leader else title)
            for pid, title in named.items()
            if (pid == leader or title.startswith(PART_TITLE)) and (stat := _stat(pid))
        ]
        self._leader = leader

    @property
    def names(self) -> list[str]:
        return [str(part) for part in self._parts]

    def look(self) -> Processes:
        """As of now. The leader's own end is not told here: its owner hears of it by itself."""
        dead: list[str] = []
        stopped: list[str] = []
        ticks = pages = 0
        for part in self._parts:
            try:
                stat = _stat(part.pid)
            except OSError:
                continue  # it cannot be looked at now, which says nothing of it
            if stat is None or stat.start_ticks != part.start_ticks or stat.state in ENDED:
                if part.pid != self._leader:
                    dead.append(str(part))
                continue
            if stat.state in STOPPED:
                stopped.append(str(part))
            ticks += stat.cpu_ticks
            pages += stat.resident_pages
        return Processes(
            dead=tuple(dead),
            stopped=tuple(stopped),
            cpu_s=ticks / CLOCK_TICKS_PER_S,
            resident_bytes=pages * PAGE_BYTES,
        )


def _title(pid: int) -> str:
    try:
        line = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return line.split(b"\0", 1)[0].decode(errors="replace").strip()[:NAME_CHARS_MAX]


def _stat(pid: int) -> _Stat | None:
    """None: there is no such process. Raises OSError: it cannot be looked at."""
    path: Path = PROC / str(pid) / "stat"
    try:
        fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return _Stat(
        state=fields[0],
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start_ticks=int(fields[19]),
        resident_pages=int(fields[21]),
    )
