"""One install at a time per folder, across processes.

The lock is the open file itself: it is gone when its last holder is, however that ended. Programs
that an install starts inherit it, so an orphaned pip keeps a second install out until it ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FILE: Final = ".install.lock"


@contextmanager
def exclusive(folder: Path, waiting: Callable[[str], None]) -> Iterator[int]:
    """Holds `folder`'s lock; yields its descriptor, to be passed on to programs.

    Waits for another install to end, after telling `waiting` whose it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            waiting(f"waiting for the install of process {holder or '?'} in {folder} to end")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)
