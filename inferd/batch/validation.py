"""Runs the check of a batch's file in a process of its own and reads its report.

Owns that process: it is gone, whatever happens, when `validate` is left.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from array import array
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from inferd.batch.lines import Rules
from inferd.errors import StorageError

CHECK_S_MAX: Final = 600.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a file holds, or the reasons why it is refused."""

    total: int
    model: str | None
    prompt_tokens: int
    output_tokens: int
    unlimited: int
    errors: list[dict[str, Any]]
    errors_total: int


async def validate(path: Path, index: Path, rules: Rules) -> Report:
    """Check the file at `path`; if it is good, `index` is written: see `read_index`.

    Raises:
        StorageError: the check itself failed.
    """
    asked = orjson.dumps({"path": str(path), "index": str(index), "rules": asdict(rules)})
    check = _Check(asked)
    try:
        async with asyncio.timeout(CHECK_S_MAX):
            code, out, err = await asyncio.to_thread(check.run)
    except TimeoutError:
        raise StorageError(f"{path}: the check took more than {CHECK_S_MAX:.0f} s.") from None
    finally:
        check.end()
    if code:
        said = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise StorageError(f"{path}: the check ended with code {code}: {said}")
    return Report(**orjson.loads(out))


class _Check:
    """One process, started and awaited in a thread; `end` from the loop ends both.

    Not by the loop: uvloop runs Python between fork and exec, which now and then waits for ever for
    a lock that a thread of ours held at the fork. The standard library runs nothing there.
    """

    def __init__(self, asked: bytes) -> None:
        self._asked = asked
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False

    def run(self) -> tuple[int, bytes, bytes]:
        """Exit code, output, errors. Blocks."""
        with subprocess.Popen(
            [sys.executable, "-m", "inferd.batch.check_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        ) as process:
            self._process = process
            if self._ended:
                process.kill()
            out, err = process.communicate(self._asked)
            return process.returncode, out, err

    def end(self) -> None:
        """Whoever asked is gone, or has its answer."""
        self._ended = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


def read_index(path: Path) -> array[int]:
    """Number, offset and length of every line, one after another. Raises OSError."""
    entries: array[int] = array("Q")
    entries.frombytes(path.read_bytes())
    return entries
