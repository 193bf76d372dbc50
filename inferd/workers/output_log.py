"""An engine's output: a file that the engine writes by itself, kept small and followed by us.

The engine has the descriptor, so a gateway that dies breaks none of its writes. The file is opened
for appending: when it has reached half the cap it is copied to `output.log.1` and cut to nothing,
and the engine goes on at its new end. What falls between the last copied byte and the cut, a few
microseconds apart, is lost. Readers tell a cut by the new `output.log.1` and read its rest first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

log = logging.getLogger(__name__)

LOOK_S_MAX: Final = 0.1
LOOK_S_MIN: Final = 0.01
"""Between two looks at the file's size: the sooner, the faster it has been growing."""
RETRY_S: Final = 1.0
COPY_BYTES: Final = 262_144
"""Copied in one piece, without giving way to other tasks; below a millisecond."""
LINE_CHARS_MAX: Final = 65_536
"""A longer line is cut into pieces of this size."""
UNFINISHED_BYTES_MAX: Final = 262_144
"""Of a line whose end is waited for."""
TAIL_BYTES_MAX: Final = 1_048_576
"""Looked through for the last lines."""

_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_SECRET: Final = re.compile(
    r"""(api_key["']?\s*[=:]\s*|--api-key["']?[\s,=]+)("[^"]*"|'[^']*'|[^\s,;)}\]]+)"""
)


class OutputLog:
    """The file of one worker and its previous part, together below the cap while `run` runs.

    An engine that writes faster than half the cap in the time that the loop may be late can pass
    it for a moment; by as much as it wrote then, no more.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path = path
        self._part_bytes_max = bytes_max // 2
        self._look_s = LOOK_S_MIN

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor for an engine to write to; ours is closed when the scope is left.

        Raises:
            OSError: the folder or file cannot be made.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def note(self, text: str) -> None:
        """Append a line of our own, so that a reader sees where a life begins and ends."""
        try:
            with self.opened() as descriptor:
                os.write(descriptor, f"\n[inferd] {text}\n".encode())  # its last line may be open
        except OSError as error:
            log.warning("cannot write to %s: %s", self.path, error)

    async def run(self) -> None:
        """Watch the size until cancelled, and cut."""
        size_before = _size(self.path)
        while True:
            await asyncio.sleep(self._look_s)
            size = _size(self.path)
            if size >= self._part_bytes_max:
                try:
                    await self._cut()
                except OSError as error:  # no descriptor is free: the next look may find one
                    log.warning("worker output %s cannot be cut now: %s", self.path, error)
                    await asyncio.sleep(RETRY_S)
                    continue
                size = size_before = 0
            # Look again well before the part could be full at the rate just seen.
            grown = max(size - size_before, 1)
            room = max(self._part_bytes_max - size, 1)
            self._look_s = min(max(self._look_s * room / grown / 4, LOOK_S_MIN), LOOK_S_MAX)
            size_before = size

    async def _cut(self) -> None:
        """Copy what is there to the previous part, then empty the file."""
        fresh = self.path.with_name(self.path.name + ".new")
        with self.opened() as source:
            try:
                with _created(fresh) as copy:
                    while os.fstat(source).st_size - copy.tell() > COPY_BYTES:
                        copy.write(os.pread(source, COPY_BYTES, copy.tell()))
                        await asyncio.sleep(0)
                    # From here to the cut nothing gives way, so little can be written between.
                    while piece := os.pread(source, COPY_BYTES, copy.tell()):
                        copy.write(piece)
                    copy.flush()
                    os.ftruncate(source, 0)
                fresh.replace(previous_part(self.path))
            except OSError as error:
                # A full disk: the lines are worth less than the space.
                log.warning("worker output %s cannot be kept, dropped: %s", self.path, error)
                fresh.unlink(missing_ok=True)
                os.ftruncate(source, 0)


class LogReader:
    """Reads the lines that were appended since the last call, also across cuts."""

    def __init__(self, path: Path, *, offset: int) -> None:
        self._path = path
        self._offset = offset
        self._previous = _identity(previous_part(path))
        self._rest = b""

    @classmethod
    def near_end(cls, path: Path, *, back_bytes: int = 0) -> LogReader:
        """A reader of the last `back_bytes` bytes and of what comes from now on."""
        return cls(path, offset=max(_size(path) - back_bytes, 0))

    def read(self, *, last: bool = False) -> list[str]:
        """New whole lines, cleaned of control characters and keys.

        Bounded by the file's cap. `last` gives the unfinished line too: nothing more will come.
        """
        data = self._appended()
        pieces = re.split(rb"[\r\n]+", self._rest + data)
        self._rest = pieces.pop()
        if last or len(self._rest) > UNFINISHED_BYTES_MAX:
            pieces.append(self._rest)
            self._rest = b""
        # Cleaned before it is cut, so that no key can be cut in two.
        return [
            line[start : start + LINE_CHARS_MAX]
            for line in map(clean, filter(None, pieces))
            for start in range(0, len(line), LINE_CHARS_MAX)
        ]

    def _appended(self) -> bytes:
        data = b""
        previous = _identity(previous_part(self._path))
        if previous is not None and previous != self._previous:
            data = _read_from(previous_part(self._path), self._offset)
            self._previous, self._offset = previous, 0
        data += (more := _read_from(self._path, self._offset))
        self._offset += len(more)
        return data


def previous_part(path: Path) -> Path:
    """Where the output goes that had to make room."""
    return path.with_name(path.name + ".1")


def clean(line: bytes) -> str:
    """One line of output as text that is safe to print: no terminal codes, no API key."""
    text = _CONTROL.sub("", line.decode("utf-8", errors="replace"))
    return _SECRET.sub(r"\1***", text)


async def follow(
    path: Path, *, lines: int, follow: bool, over: Callable[[], bool] = lambda: False
) -> AsyncIterator[str]:
    """The last `lines` lines, then with `follow` every new one until it is `over`."""
    reader = LogReader.near_end(path, back_bytes=TAIL_BYTES_MAX)
    found = reader.read(last=not follow)
    if len(found) < lines:
        earlier = LogReader.near_end(previous_part(path), back_bytes=TAIL_BYTES_MAX)
        found = earlier.read(last=True) + found
    for line in found[len(found) - min(lines, len(found)) :]:
        yield line
    while follow and not over():
        await asyncio.sleep(LOOK_S_MAX)
        for line in reader.read():
            yield line


def _read_from(path: Path, offset: int) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        file.seek(offset)
        return file.read()
    return b""


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _identity(path: Path) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None


@contextmanager
def _created(path: Path) -> Iterator[BinaryIO]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield file
