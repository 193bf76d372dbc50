"""What belongs to the repository: the files that git tracks or would track."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def files() -> tuple[str, ...]:
    """Paths relative to the root, of files that exist and git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    return tuple(sorted({path for path in listed if path and (ROOT / path).is_file()}))


def python_files() -> tuple[str, ...]:
    return tuple(path for path in files() if path.endswith(".py"))


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")
