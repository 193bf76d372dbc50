"""A free lock of the engine's environment costs nothing."""

from __future__ import annotations

import os
from pathlib import Path

from inferd.provision.lock import exclusive


def test_a_free_lock_is_taken_at_once_and_names_its_holder(tmp_path: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        with exclusive(tmp_path, told.append) as lock:
            assert os.pread(lock, 32, 0) == f"{os.getpid()}\n".encode()
    assert told == []
