"""Whether a starting engine is getting on, and what to tell people of it. Pure: no clock, no I/O.

Progress is output (but for the lines that our own probes cause), a new phase, processor time or
bytes read. A load may take as long as it wants while it makes some; one that makes none has failed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import Final

from inferd.workers.engine_output import STARTING, is_request_line, phase_of
from inferd.workers.process import Activity

LINES_KEPT: Final = 200
LINE_CHARS_SHOWN: Final = 160
CPU_SHARE_MIN: Final = 0.1
"""Of one core: what an engine burns while answering our probes is far less."""
READ_BYTES_PER_S_MIN: Final = 1_048_576
"""Weights that come from anywhere worth loading from come faster."""

_TIMESTAMP: Final = re.compile(r"^\[[0-9 :.-]+\] ")


class LoadProgress:
    """What one start has shown so far; `now` is the loop's time."""

    def __init__(self, now: float) -> None:
        self.phase = STARTING
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._last_progress = now
        self._last_look = now
        self._activity = Activity(cpu_s=0.0, read_bytes=0)

    @property
    def text(self) -> str:
        """The phase and the last line of output that is not the continuation of another."""
        heads = (line for line in reversed(self.lines) if line[:1].strip())
        last = _TIMESTAMP.sub("", next(heads, ""))[:LINE_CHARS_SHOWN]
        return f"{self.phase}: {last}" if last else self.phase

    def hear(self, now: float, lines: Iterable[str]) -> None:
        """Take in output that came since the last time."""
        for line in lines:
            if not is_request_line(line):
                self.lines.append(line)
                self.phase = phase_of(line) or self.phase
                self._last_progress = now

    def look(self, now: float, activity: Activity) -> None:
        """Judge what its processes have done since the last look; seconds apart, not less."""
        elapsed_s = now - self._last_look
        worked = activity.cpu_s - self._activity.cpu_s >= CPU_SHARE_MIN * elapsed_s
        read = activity.read_bytes - self._activity.read_bytes >= READ_BYTES_PER_S_MIN * elapsed_s
        if elapsed_s > 0 and (worked or read):
            self._last_progress = now
        self._last_look = now
        self._activity = activity

    def stalled_s(self, now: float) -> float:
        """For how long nothing has happened."""
        return now - self._last_progress
