"""Programs of an install. Goal: all succeed or all are over, and a failure shows why."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from inferd.provision import programs
from inferd.provision.programs import Program, ProgramFailed, run_together

FOREVER = "import sys, time\nprint('on', flush=True)\ntime.sleep(600)"


def python(folder: Path, name: str, code: str) -> Program:
    return Program(
        name,
        [sys.executable, "-c", code],
        {"PATH": os.environ["PATH"]},
        folder / f"{name}.log",
        noise=lambda line: line.startswith("noise"),
    )


def run(*started: Program) -> tuple[list[tuple[str, str]], list[str]]:
    lines: list[tuple[str, str]] = []
    ended: list[str] = []
    run_together(
        started,
        lambda program, line: lines.append((program.name, line)),
        lambda program: ended.append(program.name),
    )
    return lines, ended


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_each_program_has_its_lines_and_its_log(tmp_path: Path) -> None:
    first = python(tmp_path, "first", "print('one\\nnoise\\ntwo')")
    second = python(tmp_path, "second", "import sys; sys.stderr.write('wrong\\nno newline')")
    lines, ended = run(first, second)
    assert [line for name, line in lines if name == "first"] == ["one", "noise", "two"]
    assert [line for name, line in lines if name == "second"] == ["wrong", "no newline"]
    assert sorted(ended) == ["first", "second"]
    assert first.log.read_text() == "one\ntwo\n"
    assert second.log.read_text() == "wrong\nno newline\n"


def test_they_run_at_the_same_time(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Neither can end before the other has come as far as opening the pipe.
    run(
        python(tmp_path, "reader", f"print(open({str(pipe)!r}).read())"),
        python(tmp_path, "writer", f"open({str(pipe)!r}, 'w').write('met')"),
    )
    assert (tmp_path / "reader.log").read_text() == "met\n"


def test_the_first_failure_stops_the_others_and_shows_the_end(tmp_path: Path) -> None:
    pids: list[int] = []
    code = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    fails = (
        "import sys\nfor n in range(40): print(n, flush=True)\n"
        f"while not open({str(tmp_path / 'endless.log')!r}).read(): pass\nsys.exit(3)"
    )
    started = [python(tmp_path, "endless", code), python(tmp_path, "fails", fails)]

    def on_line(program: Program, line: str) -> None:
        if program.name == "endless":
            pids.append(int(line))

    with pytest.raises(ProgramFailed) as caught:
        run_together(started, on_line, lambda _: None)
    assert caught.value.program.name == "fails"
    assert caught.value.code == 3
    assert caught.value.tail == tuple(str(n) for n in range(40 - programs.TAIL_LINES, 40))
    assert not alive(pids[0])


def test_an_interruption_leaves_no_program_behind(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupt(_program: Program, line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    code = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        run_together([python(tmp_path, "endless", code)], interrupt, lambda _: None)
    assert not alive(pids[0])


def test_a_silent_program_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "SILENCE_S_MAX", 0.05)
    with pytest.raises(ProgramFailed, match="no output for 0 s") as caught:
        run(python(tmp_path, "silent", FOREVER))
    assert caught.value.code is None


def test_a_killed_program_names_its_signal(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(ProgramFailed, match="killed by SIGKILL"):
        run(python(tmp_path, "killed", code))


def test_what_cannot_be_started_stops_what_was(tmp_path: Path) -> None:
    missing = Program("missing", [str(tmp_path / "no")], {}, tmp_path / "missing.log")
    with pytest.raises(FileNotFoundError):
        run(python(tmp_path, "endless", FOREVER), missing)


@pytest.mark.parametrize(
    ("code", "words"), [(None, "no output"), (-9, "SIGKILL"), (2, "exit code 2")]
)
def test_endings_in_words(code: int | None, words: str) -> None:
    assert words in programs.ending(code)


def split(data: Sequence[bytes], tmp_path: Path) -> list[str]:
    code = f"import os\nfor part in {list(data)!r}: os.write(1, part)"
    return [line for _, line in run(python(tmp_path, "parts", code))[0]]


def test_lines_are_whole_however_they_are_written(tmp_path: Path) -> None:
    parts = [b"o", b"ne\nt", b"wo\n", b"\xc3\xa9\xff\r\n", b"last"]
    assert split(parts, tmp_path) == ["one", "two", "é\ufffd", "last"]
