"""One batch in memory while it is not finished: its row, its files, which of its lines are done.

Synchronous. A line is taken once, then done or given back; `idle` says that none is out.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from inferd.batch.spool import ENTRY, Spool
from inferd.storage.batches import BatchRow
from inferd.storage.usage import UsageRow


@dataclass(frozen=True, slots=True)
class Line:
    """Where a line is: its place among the lines, its number in the file, its bytes."""

    place: int
    number: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class LineResult:
    """What a line came to: its line in the output or the error file, and its bill."""

    line: Line
    data: bytes
    failed: bool
    usage_row: UsageRow | None


class InputFile(Protocol):
    """A batch's input in the store of files. Its bytes stay until it is let go."""

    purpose: str

    def read(self) -> AsyncIterator[bytes]: ...

    def let_go(self) -> None: ...


class Job:
    """Made by the runner. `scope` ends whatever waits inside it when the batch is cancelled."""

    def __init__(self, row: BatchRow, spool: Spool) -> None:
        self.row = row
        self.spool = spool
        self.idle = asyncio.Event()
        self.idle.set()
        self.complete = asyncio.Event()
        """Every line is done."""
        self.input: InputFile | None = None
        """Until it is copied."""
        self.scope: asyncio.Timeout | None = None
        self.tasks: dict[int, asyncio.Task[None]] = {}
        """Of lines that are being served, by place."""
        self.feeding = False
        self.out = 0
        """Lines taken and neither done nor given back."""
        self.done_count = 0
        self._entries: array[int] = array("Q")
        self._done = bytearray()
        self._next = 0
        self._returned: list[int] = []

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def left(self) -> int:
        """Lines that are not done."""
        return len(self._done) - self.done_count

    @property
    def has_next(self) -> bool:
        self._skip()
        return bool(self._returned) or self._next < len(self._done)

    def let_input_go(self) -> None:
        """It is copied, or nobody needs it any more."""
        if self.input is not None:
            self.input.let_go()
            self.input = None

    def load(self, entries: array[int], done: Iterable[int]) -> None:
        """The index of the file, and the numbers of lines that are done."""
        numbers = set(done)
        self._entries = entries
        self._done = bytearray(entries[at] in numbers for at in range(0, len(entries), ENTRY))
        self.done_count = sum(self._done)
        self._next = 0
        self._returned.clear()
        self.complete.clear()
        if not self.left:
            self.complete.set()

    def take(self) -> Line:
        """The next line that is to be served."""
        self._skip()
        if self._returned:
            place = self._returned.pop()
        else:
            place = self._next
            self._next += 1
        self.out += 1
        self.idle.clear()
        number, offset, length = self._entries[place * ENTRY : place * ENTRY + ENTRY]
        return Line(place, number, offset, length)

    def take_rest(self) -> Iterator[Line]:
        """Every line that is neither done nor out, taken one by one."""
        while self.has_next:
            yield self.take()

    def give_back(self, line: Line) -> None:
        """It was not served: it is next."""
        self._returned.append(line.place)
        self._ended()

    def done(self, line: Line) -> None:
        """Its result is on disk, and counted."""
        assert not self._done[line.place], "a line is done once"
        self._done[line.place] = 1
        self.done_count += 1
        self._ended()
        if not self.left:
            self.complete.set()

    def counted(self, row: BatchRow) -> None:
        """Take over what lines have changed of the row; the rest has its own writer."""
        self.row = replace(
            self.row,
            completed=row.completed,
            failed=row.failed,
            prompt_tokens=row.prompt_tokens,
            cached_tokens=row.cached_tokens,
            completion_tokens=row.completion_tokens,
            reasoning_tokens=row.reasoning_tokens,
            cost_pico=row.cost_pico,
            output_bytes=row.output_bytes,
            error_bytes=row.error_bytes,
        )

    def _ended(self) -> None:
        self.out -= 1
        if not self.out:
            self.idle.set()

    def _skip(self) -> None:
        while self._next < len(self._done) and self._done[self._next]:
            self._next += 1
