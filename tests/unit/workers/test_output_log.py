from __future__ import annotations

import asyncio
import errno
import os
import resource
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.workers import output_log
from inferd.workers.output_log import LogReader, OutputLog, clean, follow, previous_part

CAP = 4_096


@asynccontextmanager
async def kept_small(log: OutputLog) -> AsyncIterator[Callable[[str], None]]:
    """The log's service runs; gives a function that writes as an engine would."""
    with log.opened() as descriptor:

        def write(text: str) -> None:
            os.write(descriptor, text.encode())

        async with asyncio.TaskGroup() as group:
            service = group.create_task(log.run())
            yield write
            service.cancel()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Nothing can be opened: every descriptor that this process may have is taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_lack_of_descriptors_ends_neither_the_cutting_nor_the_reading(
    tmp_path: Path,
) -> None:
    log = OutputLog(tmp_path / "output.log", CAP)
    async with kept_small(log) as write:
        reader = LogReader.near_end(log.path)
        write("one\n" * CAP)
        with no_descriptors():
            await asyncio.sleep(5)
            assert reader.read() == []
        await asyncio.sleep(5)
        assert log.path.stat().st_size == 0
        assert reader.read() == ["one"] * CAP


async def lines_of(path: Path, lines: int) -> list[str]:
    return [line async for line in follow(path, lines=lines, follow=False)]


def size(log: OutputLog) -> int:
    parts = (log.path, previous_part(log.path))
    return sum(part.stat().st_size for part in parts if part.exists())


async def test_output_is_capped_and_its_end_is_kept(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "w" / "output.log", CAP)
    async with kept_small(log) as write:
        for number in range(1_000):
            write(f"line {number}\n")
            await asyncio.sleep(0.01)
            assert size(log) <= CAP + 256
    kept = await lines_of(log.path, 10_000)
    assert kept[-1] == "line 999"
    numbers = [int(line.split()[1]) for line in kept]
    assert numbers == list(range(numbers[0], 1_000))
    assert len(numbers) > 150


async def test_a_follower_misses_nothing_and_repeats_nothing_across_cuts(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "output.log", CAP)
    seen: list[str] = []

    async def watch() -> None:
        async for line in follow(log.path, lines=10, follow=True):
            seen.append(line)  # noqa: PERF401 - a comprehension shows nothing before its end

    async with asyncio.TaskGroup() as group, kept_small(log) as write:
        watcher = group.create_task(watch())
        for number in range(2_000):
            write(f"line {number}\n")
            await asyncio.sleep(0.007)
        await asyncio.sleep(1)
        watcher.cancel()
    assert seen == [f"line {number}" for number in range(2_000)]


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=60), st.data())
async def test_a_reader_gives_the_same_lines_however_they_were_written(
    pieces: list[bytes], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = OutputLog(Path(folder) / "output.log", 512)
        got: list[str] = []
        reader = LogReader.near_end(log.path)
        async with kept_small(log):
            with log.opened() as descriptor:
                for piece in pieces:
                    os.write(descriptor, piece)
                    if data.draw(st.booleans()):
                        await asyncio.sleep(0.2)
                        got += reader.read()
        got += reader.read(last=True)
    whole = b"".join(pieces).replace(b"\r", b"\n").split(b"\n")
    assert "".join(got) == "".join(map(clean, whole))


async def test_the_last_lines_come_from_both_parts(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    previous_part(path).write_text("one\ntwo\n")
    path.write_text("three\nfour")
    assert await lines_of(path, 3) == ["two", "three", "four"]
    assert await lines_of(path, 1) == ["four"]
    assert await lines_of(path, 0) == []


async def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    assert await lines_of(path, 5) == []
    following = follow(path, lines=5, follow=True)

    async def write_later() -> None:
        await asyncio.sleep(3)
        path.write_text("begun\n")

    async with asyncio.TaskGroup() as group:
        group.create_task(write_later())
        assert await anext(following) == "begun"
    await following.aclose()  # type: ignore[attr-defined]


def test_progress_bars_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    reader = LogReader.near_end(path)
    path.write_bytes(b"\rshards: 0%\rshards: 50%\rshards: 100%\n")
    assert reader.read() == ["shards: 0%", "shards: 50%", "shards: 100%"]


def test_an_unfinished_line_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    reader = LogReader.near_end(path)
    path.write_bytes(b"half of")
    assert reader.read() == []
    with path.open("ab") as file:
        file.write(b" a line\nrest")
    assert reader.read() == ["half of a line"]
    assert reader.read(last=True) == ["rest"]


def test_no_line_grows_without_bound(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    reader = LogReader.near_end(path)
    path.write_bytes(b"x" * 300_000)
    lines = reader.read()
    assert sum(map(len, lines)) == 300_000
    assert max(map(len, lines)) <= output_log.LINE_CHARS_MAX


@pytest.mark.parametrize(
    "line",
    [
        b"server_args={'port': 1, 'api_key': 'secret-key', 'x': 2}",
        b"ServerArgs(port=1, api_key='secret-key', x=2)",
        b"argv: --api-key secret-key --port 1",
        b"['--api-key', 'secret-key', '--port']",
        b"admin_api_key=secret-key",
        b'{"api_key": "secret-key"}',
    ],
)
def test_the_engines_key_is_never_shown(line: bytes) -> None:
    assert "secret-key" not in clean(line)
    assert "***" in clean(line)


def test_a_key_in_a_very_long_line_is_not_shown_either(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    reader = LogReader.near_end(path)
    padding = b"x" * (output_log.LINE_CHARS_MAX - 20)
    path.write_bytes(padding + b"'api_key': '" + b"k" * 40 + b"'\n")
    assert "kk" not in "".join(reader.read())


def test_terminal_codes_do_not_reach_a_terminal() -> None:
    assert clean(b"\x1b[31mred\x1b[0m \x1b]0;title\x07 caf\xc3\xa9 \xff\ttab") == (
        "red ]0;title café \ufffd\ttab"
    )


async def test_the_files_are_private(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "w" / "output.log", CAP)
    async with kept_small(log) as write:
        write("x" * CAP)
        await asyncio.sleep(1)
    for part in (log.path, previous_part(log.path)):
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "w").stat().st_mode) == 0o700


async def test_a_full_disk_costs_the_lines_not_the_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = OutputLog(tmp_path / "output.log", CAP)

    def full(path: Path) -> object:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(output_log, "_created", full)
    async with kept_small(log) as write:
        for _ in range(100):
            write("x" * 100 + "\n")
            await asyncio.sleep(0.05)
        assert size(log) <= CAP
    assert not previous_part(log.path).exists()


async def test_last_words_are_followed_before_it_is_over(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "output.log", 65_536)
    log.note("first")
    looks = 0

    def over() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            log.note("last")  # by whoever then says that it is over
        return looks > 2

    seen = [line async for line in follow(log.path, lines=10, follow=True, over=over)]
    assert seen == ["[inferd] first", "[inferd] last"]
