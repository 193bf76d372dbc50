"""The inferd under test for batches: killed with and without its workers, and cut off from power.

A power cut leaves of the database's log and of the spools what a disk may leave: each ends
anywhere, but for what made the batch known, and for what the database file already relies on.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import aiohttp

from inferd.storage.usage import UsageRow
from scripts.soaks.chaos_node import ChaosNode
from tests.fakes.engines import DEMO_MODEL, REPOSITORY
from tests.fakes.power_cut import Log
from tests.fakes.served import DUMMY_ARGS

TEAM: Final = "search"
LOOK_S: Final = 0.05
LISTENS_S_MAX: Final = 60.0
TEXT = """
[files]
store = "files"

[[models]]
name = "chat"
default_version = "1"
context_tokens_max = 4_096
output_tokens_max = 2_048

[models.targets]
ttft_ms = 10_000
tpot_ms = 1_000

[[models.versions]]
version = "1"
weights = "{weights}"

[models.versions.engine]
device = "cpu"
running_max = 16
queued_max = 64
kv_tokens_max = 16_384
chunked_prefill_tokens = 512
tool_call_parser = "qwen25"
extra_args = {extra_args}

[models.versions.workers]
count = {count}
restart_backoff_s = 0.2
restart_backoff_s_max = 1
restarts_per_hour_max = 1_000

[[teams]]
name = "search"
"""


@dataclass
class BatchNode(ChaosNode):
    """One inferd for one team."""

    random_weights: bool = False
    """The real engine with two layers of whatever, which is quick."""

    @cached_property
    def log(self) -> Log:
        """Of its database."""
        return Log(self.folder / "state" / "inferd.db")

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def key(self) -> str:
        return self.keys[TEAM]

    def write_config(self, **changed: int) -> None:
        self.settings.update(changed)
        text = TEXT.format(
            weights=DEMO_MODEL if self.real else "model",
            count=self.workers,
            extra_args=json.dumps(DUMMY_ARGS if self.random_weights else [], ensure_ascii=True),
        )
        self.put_config(text)

    async def prepare(self, speed: float) -> None:
        if not self.real:
            self.install(speed)
        self.write_config()
        await self.create_key(TEAM)

    async def start(self, ready: int = 0) -> None:
        """Until it listens; a worker may come later, or be there from the life before."""
        await super().start(ready)
        async with asyncio.timeout(LISTENS_S_MAX):
            while not await self._listens():  # noqa: ASYNC110 - another process
                await asyncio.sleep(LOOK_S)

    async def kill_worker(self, chance: random.Random) -> None:
        """SIGKILL to the leader of one that takes requests."""
        await self.until_ready()
        ready = self.ready(await self.status())
        if ready:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(ready)["pid"], signal.SIGKILL)

    async def cut_power(self, chance: random.Random) -> list[str]:
        """Everything ends at once, and files end anywhere. Which were cut, by how much."""
        await self.kill()
        await self.kill_all()
        return await asyncio.to_thread(self._cut_files, chance)

    async def end(self) -> None:
        """Kill it and all that is left of its lives."""
        await super().end()
        await self.kill_all()

    async def kill_all(self) -> None:
        """SIGKILL to whatever runs in the folder, until nothing does."""
        while pids := await asyncio.to_thread(self._living):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(LOOK_S)

    def rows_of_batch(self) -> dict[str, UsageRow]:
        """The ledger's rows of lines, by request id."""
        found = [row for row in self.rows() if "batch_req" in row.request_id]
        assert len({row.request_id for row in found}) == len(found), "a line is billed twice"
        return {row.request_id: row for row in found}

    def _cut_files(self, chance: random.Random) -> list[str]:
        cut = [told] if (told := self.log.cut(chance)) else []
        spools = sorted((self.folder / "state" / "batches").glob("*/*"))
        for path in chance.sample(spools, chance.randint(0, len(spools))):
            size = path.stat().st_size
            end = chance.randint(0, size)
            os.truncate(path, end)
            cut.append(f"{path.name}: {size} to {end}")
        return cut

    def _living(self) -> list[int]:
        """Processes whose working folder is this one or inside of it."""
        home, found = self.folder.resolve(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    place = (entry / "cwd").readlink()
                    if place.is_relative_to(home):
                        found.append(int(entry.name))
        return found

    async def _listens(self) -> bool:
        try:
            async with self.http.get(f"http://127.0.0.1:{self.port}/healthz") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False


def tool_lines(count: int) -> list[dict[str, Any]]:
    """Requests that call tools, as people wrote them."""
    path = REPOSITORY / "tests" / "data" / "bfcl_200.jsonl"
    with path.open() as file:
        return [json.loads(line) for line, _ in zip(file, range(count), strict=False)]
