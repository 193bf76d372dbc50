"""What `inferd serve` shows a person: how far workers are, and what becomes of them.

Owns standard output while inferd serves. It is told by the workers themselves, so it never raises:
once the output is gone (a closed terminal or pipe) it is silent and inferd serves on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from inferd import clock
from inferd.config.address import Address
from inferd.workers.base import WorkerBase
from inferd.workers.states import STARTING, WorkerState

LOOK_S = 0.2

Greet = Callable[[str, WorkerBase], str | None]
"""Public base URL and a worker that has become ready -> what to say, once; None: not yet."""


@dataclass(frozen=True, slots=True)
class Starting:
    """A worker on its way to READY."""

    worker: str
    state: str
    elapsed_s: float
    progress: str


class Output(Protocol):
    """Where it is shown; raises OSError when it is gone."""

    def say(self, text: str, style: str = "") -> None:
        """Lines that stay."""

    def starting(self, workers: list[Starting]) -> None:
        """What is on its way now; called every `LOOK_S` seconds, with [] when nothing is."""

    def close(self) -> None: ...


class StartDisplay:
    """The app's spectator. `run` is its service; `greet` is asked until it says something."""

    def __init__(self, output: Output, grace_s: float, greet: Greet) -> None:
        self._output = output
        self._grace_s = grace_s
        self._greet: Greet | None = greet
        self._base_url = ""
        self._workers: dict[str, WorkerBase] = {}
        self._began: dict[str, float] = {}
        self._outlooks: dict[str, str] = {}
        self._gone = False

    async def run(self) -> None:
        """Show progress until cancelled."""
        try:
            while True:
                self._look()
                await asyncio.sleep(LOOK_S)
        finally:
            self._shown(self._output.close)

    def listening(self, public: Address, admin: Address) -> None:
        self._base_url = f"http://{public.reachable}/v1"
        self.say(f"inferd listens at http://{public} (admin API at http://{admin})")

    def worker_changed(self, worker: WorkerBase, before: WorkerState, after: WorkerState) -> None:
        if before not in STARTING and after in STARTING:
            self._began[worker.id] = clock.monotonic()
        self._workers[worker.id] = worker
        self._outlooks.pop(worker.id, None)
        if after is WorkerState.READY:
            if before is WorkerState.STOPPED:
                self.say(f"{worker.id} is ready: its engine was running already", "green")
            else:
                self.say(f"{worker.id} is ready after {self._elapsed_s(worker):.0f} s", "green")
            self._greet_for(worker)
        elif after is WorkerState.FAILED:
            self.say(f"{worker.id} failed: {worker.reason}", "red")
            if worker.output_path is None:
                self.say("  It is used again when it answers as it should.")
        elif after is WorkerState.DRAINING:
            self.say(f"{worker.id} finishes what it has ({worker.reason})")
        elif after is WorkerState.STOPPED:
            self.say(f"{worker.id} has stopped ({worker.reason})")

    def stopping(self) -> None:
        self.say(
            f"Stopping. Running requests may finish within {self._grace_s:g} s; a second Ctrl-C"
            " (or SIGTERM) ends them now.",
            "yellow",
        )

    def say(self, text: str, style: str = "") -> None:
        self._shown(lambda: self._output.say(text, style))

    def _look(self) -> None:
        starting = []
        for worker in self._workers.values():
            if worker.state in STARTING:
                elapsed_s = self._elapsed_s(worker)
                starting.append(Starting(worker.id, worker.state, elapsed_s, worker.progress))
            elif worker.state is WorkerState.FAILED:
                self._tell_outlook(worker)
        self._shown(lambda: self._output.starting(starting))

    def _tell_outlook(self, worker: WorkerBase) -> None:
        """The supervisor decides after the failure was told, so its decision comes later."""
        if worker.outlook and self._outlooks.get(worker.id) != worker.outlook:
            self._outlooks[worker.id] = worker.outlook
            self.say(f"  {worker.outlook}. Its output: inferd logs {worker.id}")

    def _greet_for(self, worker: WorkerBase) -> None:
        text = self._greet(self._base_url, worker) if self._greet else None
        if text is not None:
            self._greet = None
            self.say(f"\n{text}\n")

    def _elapsed_s(self, worker: WorkerBase) -> float:
        return clock.monotonic() - self._began.get(worker.id, worker.since)

    def _shown(self, action: Callable[[], None]) -> None:
        if self._gone:
            return
        try:
            action()
        except OSError:
            self._gone = True
