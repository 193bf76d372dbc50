"""Runs the programs of an install, some at a time, each with its output in a log of its own.

Owns the processes: they are over when `run_together` returns or raises, also on Ctrl-C.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

TAIL_LINES: Final = 12
SILENCE_S_MAX: Final = 900.0
"""A program that prints nothing this long hangs: even unpacking 1 GB on a slow disk is faster."""
STOP_S: Final = 10.0
_READ_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Program:
    """What to run; `noise` says which lines of its output are not worth a place in the log."""

    name: str
    arguments: Sequence[str]
    env: Mapping[str, str]
    log: Path
    noise: Callable[[str], bool] = lambda _line: False


class ProgramFailed(Exception):
    """`program` ended with `code` (negative: a signal) or, if `code` is None, hung."""

    def __init__(self, program: Program, code: int | None, tail: Sequence[str]) -> None:
        super().__init__(f"{program.name} failed ({ending(code)})")
        self.program = program
        self.code = code
        self.tail = tuple(tail)


def ending(code: int | None) -> str:
    """How a program ended, in words."""
    if code is None:
        return f"no output for {SILENCE_S_MAX:.0f} s"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


@dataclass(slots=True)
class _Running:
    program: Program
    process: subprocess.Popen[bytes]
    log: BinaryIO
    rest: bytes = b""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))

    def take(self, data: bytes, on_line: Callable[[Program, str], None]) -> None:
        """Splits output into lines; the last, unfinished one waits for more."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        for raw in lines:
            line = raw.decode(errors="replace").rstrip()
            if not self.program.noise(line):
                self.log.write(raw + b"\n")
                self.tail.append(line)
            on_line(self.program, line)


def run_together(
    programs: Sequence[Program],
    on_line: Callable[[Program, str], None],
    on_end: Callable[[Program], None],
    *,
    inherited: Sequence[int] = (),
) -> None:
    """Runs all of `programs` at once until each has succeeded.

    Raises ProgramFailed for the first that does not; the others are then stopped. `inherited` are
    descriptors that they keep open.
    """
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for program in programs:
            running = _start(program, inherited, stack)
            assert running.process.stdout is not None
            selector.register(running.process.stdout, selectors.EVENT_READ, running)
        while selector.get_map():
            events = selector.select(SILENCE_S_MAX)
            if not events:
                stuck = next(iter(selector.get_map().values())).data
                raise ProgramFailed(stuck.program, None, stuck.tail)
            for key, _ in events:
                if data := os.read(key.fd, _READ_BYTES):
                    key.data.take(data, on_line)
                else:
                    selector.unregister(key.fileobj)
                    _end(key.data, on_line, on_end)


def _start(program: Program, inherited: Sequence[int], stack: ExitStack) -> _Running:
    program.log.parent.mkdir(parents=True, exist_ok=True)
    log = stack.enter_context(program.log.open("wb", buffering=0))
    process = subprocess.Popen(
        [*program.arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(program.env),
        pass_fds=tuple(inherited),
    )
    stack.callback(_stop, process)
    return _Running(program, process, log)


def _end(
    running: _Running,
    on_line: Callable[[Program, str], None],
    on_end: Callable[[Program], None],
) -> None:
    """Its output is closed: its exit follows."""
    running.take(b"\n" if running.rest else b"", on_line)
    try:
        code: int | None = running.process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        code = None
    if code != 0:
        raise ProgramFailed(running.program, code, running.tail)
    on_end(running.program)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.stdout is not None:
        process.stdout.close()
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
