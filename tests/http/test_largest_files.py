"""Files and batches at their very limits. Goal: what is too large is told, and gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inferd.batch.lines import LINES_MAX
from inferd.config.files import Files
from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import Gateway
from tests.http.test_batches import encoded, ended, line, serving
from tests.http.test_files import FORM, LINE, PURPOSE, form, part, stored

pytestmark = pytest.mark.real_time(timeout_s=120)

PIECE = 1_048_576
GOOD = encoded(line(1))
HEAD, TAIL = form(PURPOSE, part("file", b"|", "a.jsonl")).split(b"|")


async def uploaded(inferd: Gateway, pieces: Iterator[bytes]) -> tuple[int, dict[str, object]]:
    """In chunks, without a length: the status and what was answered."""

    async def body() -> AsyncIterator[bytes]:
        yield HEAD
        for piece in pieces:
            yield piece
        yield TAIL

    headers = inferd.headers | {"content-type": FORM}
    url = f"{inferd.base_url}/v1/files"
    async with inferd.http.post(url, data=body(), headers=headers) as answer:
        return answer.status, await answer.json()


async def none_left(look: Callable[[], list[Any]]) -> None:
    """What was refused goes behind the answer."""
    async with asyncio.timeout(10):
        while look():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def whole(size: int) -> Iterator[bytes]:
    """A good line, and then so many bytes in all."""
    yield LINE
    blank = b" " * PIECE
    for at in range(len(LINE), size, PIECE):
        yield blank[: min(PIECE, size - at)]


async def test_the_largest_file_is_taken_and_one_byte_more_is_not(
    tmp_path: Path, fast: EngineProcess
) -> None:
    bytes_max = Files().bytes_max
    async with serving(tmp_path, fast) as inferd:
        status, told = await uploaded(inferd, whole(bytes_max))
        assert (status, told.get("bytes")) == (200, bytes_max)
        async with inferd.openai() as client:
            await client.files.delete(str(told["id"]))
        status, told = await uploaded(inferd, whole(bytes_max + 1))
        assert status == 413, told
        assert f"at most {bytes_max} bytes" in str(told)
        await none_left(lambda: stored(tmp_path))
        assert inferd.app.node.files.held("search").bytes == 0


def long_line() -> Iterator[bytes]:
    yield GOOD
    yield b'{"custom_id": "'
    for _ in range(100):
        yield b"x" * PIECE
    yield b'"}\n'


def many_lines() -> Iterator[bytes]:
    for number in range(LINES_MAX + 1):
        yield GOOD.replace(b'"id-1"', b'"%d"' % number, 1)


@pytest.mark.parametrize(
    ("pieces", "code", "number"),
    [(long_line, "request_too_large", 2), (many_lines, "too_many_tasks", None)],
)
async def test_a_batch_beyond_the_limits_fails_with_the_reason(
    tmp_path: Path,
    fast: EngineProcess,
    pieces: Callable[[], Iterator[bytes]],
    code: str,
    number: int | None,
) -> None:
    async with serving(tmp_path, fast) as inferd, inferd.openai() as client:
        status, told = await uploaded(inferd, iter([b"".join(pieces())]))
        assert status == 200, told
        created = await client.batches.create(
            input_file_id=str(told["id"]),
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
        batch = await ended(client, created.id)
        assert batch.status == "failed"
        assert [(one.code, one.line) for one in batch.errors.data] == [(code, number)]
        await none_left(lambda: list((tmp_path / "state" / "batches").iterdir()))
