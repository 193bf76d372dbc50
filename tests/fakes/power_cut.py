"""What a power cut may leave of SQLite's log, on files that a killed process has left.

The log ends anywhere behind what was answered for, and behind what the database file relies on: a
checkpoint copies only what was synced.
"""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path
from typing import Final

HEADER_BYTES: Final = 32
FRAME_BYTES: Final = 24 + 4_096
SALTS: Final = slice(16, 24)
"""In the log's header: they change whenever the log begins anew."""
COPIED_AT: Final = 128
"""In the shared index: how many frames a checkpoint has begun to copy to the database file."""


class Log:
    """The log of the database at `path`."""

    def __init__(self, path: Path) -> None:
        self._log = path.with_name(f"{path.name}-wal")
        self._shared = path.with_name(f"{path.name}-shm")
        self._answered = (b"", 0)

    def answered(self) -> None:
        """Something was answered for: all that is in the log by now stays."""
        self._answered = (self._salts(), self._log.stat().st_size)

    @property
    def is_ahead(self) -> bool:
        """Something is in the log that may still be lost."""
        return self._answered != (self._salts(), self._log.stat().st_size)

    def cut(self, chance: random.Random) -> str | None:
        """Nobody runs: let it end anywhere that is allowed. What was cut, in words."""
        if not self._log.exists():  # the last one closed it
            return None
        least, size = self._least(), self._log.stat().st_size
        self._shared.unlink()  # it lives in memory
        if least >= size:
            return None
        end = chance.randint(least, size)
        os.truncate(self._log, end)
        return f"{self._log.name}: {size} to {end}, at least {least}"

    def _least(self) -> int:
        copied: int = struct.unpack_from("=I", self._shared.read_bytes(), COPIED_AT)[0]
        salts, size = self._answered
        return max(HEADER_BYTES + copied * FRAME_BYTES, size if salts == self._salts() else 0)

    def _salts(self) -> bytes:
        with self._log.open("rb") as file:
            return file.read(HEADER_BYTES)[SALTS]
