"""One install at a time. Goal: the second waits, says for whom, and goes on when the first ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from inferd.provision.lock import exclusive

HOLDER = """
import sys
from pathlib import Path
from inferd.provision.lock import exclusive
with exclusive(Path(sys.argv[1]), print):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_install_waits_for_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        told: list[str] = []

        def waiting(text: str) -> None:
            told.append(text)
            assert holder.stdin is not None
            holder.stdin.close()

        with exclusive(folder, waiting):
            assert holder.wait(10) == 0
    assert told == [f"waiting for the install of process {holder.pid} in {folder} to end"]


def test_a_program_that_outlives_its_install_keeps_the_lock(tmp_path: Path) -> None:
    with exclusive(tmp_path, pytest.fail) as lock:
        orphan = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"],
            stdin=subprocess.PIPE,
            pass_fds=[lock],
        )
    assert orphan.stdin is not None
    waited: list[str] = []

    def waiting(text: str) -> None:
        waited.append(text)
        assert orphan.stdin is not None
        orphan.stdin.close()

    with exclusive(tmp_path, waiting):
        assert orphan.wait(10) == 0
    assert len(waited) == 1
