"""The steps of one install: what runs, what is told, what is noted, what a failure means.

Owns the install record while the install runs. Every ProvisionError that comes from a program
shows its last lines, where the rest is, and what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from inferd import clock
from inferd.errors import ProvisionError
from inferd.provision import pip, record
from inferd.provision.programs import Program, ProgramFailed, ending, run_together
from inferd.provision.progress import Progress
from inferd.provision.record import InstallRecord, Step

AGAIN: Final = "then run `inferd engine install` again: it goes on where it stopped"
_LOG_BYTES_READ: Final = 65_536
_OUT_OF_MEMORY: Final = -9


class Steps:
    """Runs the programs of steps and keeps `state`; `done` is what this install has finished."""

    def __init__(
        self, directory: Path, state: InstallRecord, progress: Progress, lock: int
    ) -> None:
        self.directory = directory
        self.state = state
        self.progress = progress
        self.done: list[Step] = []
        self._lock = lock

    def start(self, step: Step, text: str, *, undoes: Sequence[Step] = ()) -> None:
        """`undoes` are finished steps that will have to be done again, whatever happens now."""
        if undoes:
            self.state = self.state.without(*undoes)
            record.save(self.directory, self.state)
        self.progress.started(step, text)

    def set_python(self, version: str) -> None:
        self.state = replace(self.state, python=version)
        record.save(self.directory, self.state)

    def finish(self, step: Step, text: str) -> None:
        when = clock.utc_now().isoformat(timespec="seconds")
        self.state = self.state.with_step(step, when)
        record.save(self.directory, self.state)
        self.done.append(step)
        self.progress.finished(step, text)

    def run(self, programs: Mapping[Step, Sequence[Program]]) -> None:
        """Runs the programs of all steps at once. ProvisionError when one of them fails."""
        step_of = {p.name: step for step, started in programs.items() for p in started}
        activities: dict[Step, dict[str, str]] = {step: {} for step in programs}

        def tell(program: Program) -> None:
            step = step_of[program.name]
            self.progress.detail(step, " · ".join(activities[step].values()))

        def on_line(program: Program, line: str) -> None:
            now = activities[step_of[program.name]]
            activity = pip.activity(line, now.get(program.name, ""))
            if activity is not None:
                now[program.name] = activity
                tell(program)

        def on_end(program: Program) -> None:
            activities[step_of[program.name]].pop(program.name, None)
            tell(program)

        together = [program for started in programs.values() for program in started]
        try:
            run_together(together, on_line, on_end, inherited=[self._lock])
        except ProgramFailed as failure:
            raise _explained(failure) from failure


def _explained(failure: ProgramFailed) -> ProvisionError:
    log = failure.program.log
    cause = pip.cause(_end_of(log))
    if failure.code == _OUT_OF_MEMORY:
        cause = "the system killed it, most likely for lack of memory (4 GB are needed). Free some"
    lines = [
        f"{failure.program.name} failed ({ending(failure.code)}); the end of {log}:",
        *(f"    {line}" for line in failure.tail if line.strip()),
    ]
    if cause is None:
        lines.append(f"next: correct what {log} shows, {AGAIN}")
    else:
        what, _, advice = cause.partition(". ")
        lines += [f"cause: {what}", f"next: {advice[0].lower()}{advice[1:]}, {AGAIN}"]
    return ProvisionError("\n".join(lines))


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _LOG_BYTES_READ))
        return file.read().decode(errors="replace")
