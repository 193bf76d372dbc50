"""An engine that floods its output: the file stays small while it goes on writing by itself."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from inferd.workers.output_log import OutputLog, follow, previous_part
from inferd.workers.process import Program, spawn
from tests.process.worker_rig import until

pytestmark = pytest.mark.real_time(timeout_s=30)

CAP = 6_000_000
LINES = 160_000
# 16 MB in lines of 100 bytes, at some 5 MB/s: far beyond what an engine says at its chattiest.
CHATTY = f"""
import os, time
for number in range(0, {LINES}, 500):
    os.write(1, b"".join(b"%099d\\n" % n for n in range(number, number + 500)))
    time.sleep(0.01)
"""


async def test_a_chatty_engine_is_capped_and_followed_without_a_gap(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "output.log", CAP)
    largest = 0
    followed: list[int] = []

    async def watch_size() -> None:
        nonlocal largest
        while True:
            sizes = [p.stat().st_size for p in (log.path, previous_part(log.path)) if p.exists()]
            largest = max(largest, sum(sizes))
            await asyncio.sleep(0.002)

    async def watch_lines() -> None:
        async for line in follow(log.path, lines=0, follow=True):
            followed.append(int(line))  # noqa: PERF401 - a comprehension shows nothing before its end

    async with asyncio.TaskGroup() as group:
        with log.opened() as descriptor:
            engine = spawn(
                Program((sys.executable, "-c", CHATTY), dict(os.environ), tmp_path),
                output=descriptor,
                worker_id="chat-1-1",
                port=1,
                spec_hash="hash",
                stop_grace_s=5.0,
            )
        watchers = [group.create_task(job) for job in (log.run(), watch_size(), watch_lines())]
        async with engine:
            assert await engine.wait() == 0
        await until("the last line is followed", lambda: followed[-1] == LINES - 1)
        for watcher in watchers:
            watcher.cancel()
    assert CAP / 2 < largest <= 2 * CAP
    assert followed == sorted(set(followed))
    lost = LINES - len(followed)
    assert lost <= 500  # at most one write fell between the copy and the cut
