"""Draws the progress of an install: spinners with the time in a terminal, else plain lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from inferd import clock
from inferd.provision.progress import Progress
from inferd.provision.record import Step

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

TOLD_EVERY_S = 15.0
"""How often a plain line tells that a step still runs, and at what."""


@contextmanager
def watch() -> Iterator[Progress]:
    """Progress on standard error, in the form that its reader can take."""
    if not sys.stderr.isatty():
        yield PlainProgress()
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    bar = Bar(
        SpinnerColumn(finished_text="[green]✓[/green]"),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", style="dim", markup=False),
        console=Console(stderr=True),
    )
    with bar:
        drawn = DrawnProgress(bar)
        try:
            yield drawn
        except BaseException:
            drawn.failed()
            raise


class DrawnProgress:
    """One line a step, alive until the step is over."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._lines: dict[Step, TaskID] = {}

    def started(self, step: Step, text: str) -> None:
        self._lines[step] = self._bar.add_task(text, total=1, detail="")

    def detail(self, step: Step, text: str) -> None:
        self._bar.update(self._lines[step], detail=text)

    def finished(self, step: Step, text: str) -> None:
        if step in self._lines:
            line = self._lines.pop(step)
            self._bar.update(line, description=text, completed=1, detail="")

    def note(self, text: str) -> None:
        self._bar.console.print(text, markup=False)

    def failed(self) -> None:
        """What was under way stops where it is."""
        for line in self._lines.values():
            self._bar.update(line, detail="stopped")
            self._bar.stop_task(line)


class PlainProgress:
    """A line when a step begins, one now and then while it runs, one when it is over."""

    def __init__(self) -> None:
        self._begun: dict[Step, datetime] = {}
        self._told: dict[Step, float] = {}

    def started(self, step: Step, text: str) -> None:
        self._begun[step] = clock.utc_now()
        self._told[step] = 0.0
        _say(f"{text} ...")

    def detail(self, step: Step, text: str) -> None:
        elapsed = self._elapsed_s(step)
        if text and elapsed - self._told[step] >= TOLD_EVERY_S:
            self._told[step] = elapsed
            _say(f"  {step}, {elapsed:.0f} s: {text}")

    def finished(self, step: Step, text: str) -> None:
        if step in self._begun:
            _say(f"{text}: done in {self._elapsed_s(step):.0f} s")
            del self._begun[step]

    def note(self, text: str) -> None:
        _say(text)

    def _elapsed_s(self, step: Step) -> float:
        return (clock.utc_now() - self._begun[step]).total_seconds()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
