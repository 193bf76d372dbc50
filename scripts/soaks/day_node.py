"""The inferd of a compressed day: a team for each client, two priced models and a free one.

Its engines write down each answer they counted, so that a killed one's count is known too.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from scripts.soaks.chaos_node import ChaosNode

MODELS: Final = {"large": 2, "small": 1, "free": 1}
"""How many workers each has."""
PRICES: Final = {
    "large": "input = 2.999999, cached_input = 0.300001, output = 11.5, batch_input = 1.5",
    "small": "input = 0.07, output = 0.280007, batch_output = 0.1, batch_cached_input = 0.000001",
    "free": "",
}
HEALED_S_MAX: Final = 120.0
SERVER = """
shutdown_grace_s = 10
request_deadline_s = 30
stall_s = 8
"""
MODEL = """
[[models]]
name = "{name}"
default_version = "1"
context_tokens_max = 4_096
output_tokens_max = 512

[models.targets]
ttft_ms = 20_000
tpot_ms = 1_000

[models.queue]
wait_s_max = 20
waiting_max = 2_000
waiting_per_team_max = 1_000

[[models.versions]]
version = "1"
weights = "model"
prices = {{ {prices} }}

[models.versions.engine]
device = "cpu"
running_max = 32
kv_tokens_max = 65_536
chunked_prefill_tokens = 2_048
extra_args = {extra_args}

[models.versions.workers]
count = {count}
drain_s = {drain_s}
restart_backoff_s = 0.5
restart_backoff_s_max = 2
restarts_per_hour_max = 1_000

[models.versions.watchdog]
silence_s = 4
unanswered_s = 8
health_idle_s = 60
"""
TEAM = """
[[teams]]
name = "{name}"
weight = {weight}
priority_max = "{priority}"
"""


@dataclass
class DayNode(ChaosNode):
    """One inferd with these teams; every third of them is batch work."""

    teams: tuple[str, ...] = field(default=())

    @property
    def journal(self) -> Path:
        """A file for each engine that ever ran, named by its process."""
        return self.folder / "journal"

    def write_config(self, **changed: int) -> None:
        self.settings.update(changed)
        values = {"drain_s": 5, "weight": 1, **self.settings}
        flags = ["--journal", str(self.journal)]
        parts = [SERVER]
        parts += [
            MODEL.format(
                name=name,
                count=count,
                prices=PRICES[name],
                extra_args=json.dumps(flags),
                drain_s=values["drain_s"],
            )
            for name, count in MODELS.items()
        ]
        parts += [
            TEAM.format(
                name=team,
                weight=values["weight"] if number == 0 else 1,
                priority="batch" if number % 3 == 2 else "interactive",
            )
            for number, team in enumerate(self.teams)
        ]
        self.put_config("".join(parts))

    async def prepare(self, speed: float) -> None:
        """Folder and engine. Keys are made by `make_keys`, once it runs: there are many teams."""
        self.install(speed)

    async def make_keys(self) -> None:
        """One for each team."""
        async with asyncio.TaskGroup() as group:
            for team in self.teams:
                group.create_task(self._make_key(team))

    async def _make_key(self, team: str) -> None:
        url = f"http://127.0.0.1:{self.admin}/admin/v1/keys"
        headers = self._admin_key()
        async with self.http.post(url, json={"team": team}, headers=headers) as answer:
            assert answer.status < 300, await answer.text()
            body: dict[str, Any] = await answer.json()
            self.keys[team] = body["secret"]

    def counted(self) -> dict[str, dict[str, Any]]:
        """Every answer that an engine has counted, by its response id; `pid` is the engine's."""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted(self.journal.glob("*.jsonl")):
            for line in path.read_text().splitlines():
                row = json.loads(line)
                assert row["rid"] not in found, f"{row['rid']} was counted twice"
                found[row["rid"]] = row | {"pid": int(path.stem)}
        return found

    def unbilled(self) -> list[dict[str, Any]]:
        """What the ledger says that engines computed for nobody."""
        return self.select("SELECT * FROM unbilled_attempts")

    async def heal(self) -> None:
        """Take back what is armed on engines, until every model is served without a fault."""
        async with asyncio.timeout(HEALED_S_MAX):
            while True:
                status = await self.status()
                ready = self.ready(status)
                if len(ready) == sum(MODELS.values()) and all(
                    [await self._clear(one) for one in ready]
                ):
                    return
                await asyncio.sleep(0.3)

    async def _clear(self, worker: dict[str, Any]) -> bool:
        """True: it answers, and nothing is armed on it any more."""
        url = f"{worker['url']}/fake/fault"
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            timeout = aiohttp.ClientTimeout(2)
            async with self.http.post(url, json={"kind": "clear"}, timeout=timeout) as answer:
                return answer.status == 200
        return False
