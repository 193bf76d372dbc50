"""The files of one batch while it runs: its input, the index of its lines, its results so far.

Results are appended and synced before the checkpoint that counts them; what is behind the
checkpoint is cut off at the next start. Everything here blocks: it runs in a thread.
"""

from __future__ import annotations

import os
import shutil
from array import array
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from inferd.batch.validation import read_index

_MODE: Final = 0o600
ENTRY: Final = 3
"""Numbers of one line in the index: its number, its offset, its length."""
ENTRY_BYTES: Final = 8


class Spool:
    """In `folder`, which is made when it is first written to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.input = folder / "input.jsonl"
        self.index = folder / "index"
        self.output = folder / "output.jsonl"
        self.errors = folder / "errors.jsonl"

    def make(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(self.folder.parent)

    def holds_input(self, size: int, lines: int) -> bool:
        """The input and its index are there, whole."""
        whole = lines * ENTRY * ENTRY_BYTES
        return self.size(self.input) == size and self.size(self.index) == whole

    def entries(self) -> array[int]:
        return read_index(self.index)

    def read_line(self, offset: int, length: int) -> bytes:
        descriptor = os.open(self.input, os.O_RDONLY)
        try:
            return os.pread(descriptor, length, offset)
        finally:
            os.close(descriptor)

    def append(self, path: Path, at: int, data: bytes) -> int:
        """Write `data` at the end that counts, `at`, and sync it. Returns the new end."""
        if not data:
            return at
        is_new = not path.exists()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, _MODE)
        try:
            os.ftruncate(descriptor, at)
            left = memoryview(data)
            while left:
                written = os.pwrite(descriptor, left, at)
                at += written
                left = left[written:]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_folder(self.folder)
        return at

    def kept(self, path: Path, results: Iterable[tuple[int, bytes]]) -> int:
        """How many results are there, each behind the one before: given are its end and its head.

        A size says too little: a disk may lose a checkpoint and keep what was written behind it.
        """
        count = at = 0
        with suppress(FileNotFoundError), path.open("rb") as file:
            for end, head in results:
                data = file.read(end - at) if end > at else b""
                whole = len(data) == end - at and data.find(b"\n") == len(data) - 1
                if not whole or not data.startswith(head) or b"\0" in data:
                    break
                count, at = count + 1, end
        return count

    def size(self, path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    def cut(self, path: Path, size: int) -> None:
        """Cut back to what counts."""
        if self.size(path) > size:
            with path.open("r+b") as file:
                file.truncate(size)
                os.fsync(file.fileno())

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Names of new files outlive a power cut too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
