"""Two ways to show a start: lines for a pipe or file, a live table for a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

if TYPE_CHECKING:
    from inferd.cli.start_display import Starting

REMIND_S = 10.0
"""Between two lines of progress about one worker that is still in the same phase."""


class Lines:
    """One line for each thing that happens; of a long phase, one now and then."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, float]] = {}

    def say(self, text: str, style: str = "") -> None:
        del style
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def starting(self, workers: list[Starting]) -> None:
        self._told = {worker.worker: self._told.get(worker.worker, ("", 0.0)) for worker in workers}
        for worker in workers:
            phase, told_s = self._told[worker.worker]
            now_in = f"{worker.state}: {worker.progress.partition(':')[0]}"
            if now_in != phase or worker.elapsed_s - told_s >= REMIND_S:
                self._told[worker.worker] = (now_in, worker.elapsed_s)
                since = f"{worker.elapsed_s:.0f} s"
                self.say(f"{worker.worker} is {worker.state}, {since}: {worker.progress}")

    def close(self) -> None:
        """Nothing is open."""


class Terminal:
    """Lines that stay scroll up above a table of the workers that are starting."""

    def __init__(self) -> None:
        self._console = TerminalConsole(highlight=False)
        self._live: Live | None = None
        self._spinner = Spinner("dots")

    def say(self, text: str, style: str = "") -> None:
        # What is to be pasted is never broken by us at the terminal's width.
        self._console.print(Text(text, style), soft_wrap=True)

    def starting(self, workers: list[Starting]) -> None:
        if not workers:
            self.close()
            return
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(self._table(workers), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _table(self, workers: list[Starting]) -> Group:
        """A line a worker, cut at the terminal's edge; what comes first is always seen."""
        frame = self._spinner.render(self._console.get_time())
        width = max(len(worker.worker) for worker in workers)
        return Group(
            *(
                Text.assemble(
                    *(cast("Text", frame), " ", (worker.worker.ljust(width), "bold"), " "),
                    *((worker.state, "cyan"), f" {worker.elapsed_s:.0f} s "),
                    (worker.progress, "dim"),
                    no_wrap=True,
                    overflow="ellipsis",
                )
                for worker in workers
            )
        )


class TerminalConsole(Console):
    """A console whose end does not end the process: that is for its owner to decide."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
