"""Random cancels, failures and flaps: every claim is given back, every request settled once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from inferd.config.schema import Team
from inferd.errors import InferdError, WorkerUnreachable
from inferd.inference import Outcome
from tests.paths.data_path import CollectedStream, DataPath

REQUESTS = 1_500


class Chaos:
    """Clients, workers and their faults, all drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.path = DataPath(
            "w1", "w2", "w3", team=Team(name="search", tokens_per_s=20_000, burst_tokens=60_000)
        )
        self.ended: Counter[str] = Counter()

    async def client(self) -> None:
        chance = self.chance
        request = self.path.request(
            team=chance.choice(["search", "other"]),
            stream=chance.random() < 0.7,
            output_tokens_max=chance.randrange(1, 60),
            choices=1,
        )
        sink = CollectedStream(reads_s=chance.choice([0.0, 0.0, 0.05]))
        patience_s = chance.choice([0.0, 0.05, 0.3, 1.0, 1e6, 1e6, 1e6])
        try:
            async with asyncio.timeout(patience_s):
                await self.path.dispatch.run(request, sink)
            self.ended["completed"] += 1
        except InferdError as error:
            self.ended[type(error).__name__] += 1
            assert b"[DONE]" not in sink.received
        except TimeoutError:
            self.ended["left"] += 1

    async def worker(self, name: str, over: asyncio.Event) -> None:
        worker = self.path.workers[name]
        while not over.is_set():
            act = self.chance.random()
            worker.cut_after = self.chance.choice([None, None, None, 3, 20])
            worker.refuses_connections = act < 0.1
            worker.ignores_aborts = act > 0.9
            worker.status = 503 if 0.1 <= act < 0.2 else 200
            worker.body = b'{"message":"The request queue is full.","code":503}'
            if act < 0.3:
                worker.client.fail_all(WorkerUnreachable("The worker was lost."))
                self.path.scheduler.target_down(name)
            elif act < 0.4:
                self.path.scheduler.target_draining(name)
            else:
                self.path.scheduler.target_up(name, self.chance.randrange(1, 9))
            await asyncio.sleep(self.chance.expovariate(2))

    async def run(self) -> None:
        over = asyncio.Event()
        async with self.path.serving() as requests:
            async with asyncio.TaskGroup() as clients:
                for name in self.path.workers:
                    requests.create_task(self.worker(name, over))
                for _ in range(REQUESTS):
                    clients.create_task(self.client())
                    await asyncio.sleep(self.chance.expovariate(40))
            over.set()


@pytest.mark.parametrize("seed", range(4))
async def test_all_accounts_are_zero_at_the_end_and_every_request_has_one_row(seed: int) -> None:
    chaos = Chaos(seed)
    await chaos.run()
    chaos.path.assert_at_rest()
    rows = chaos.path.rows
    assert len(rows) == REQUESTS
    outcomes = Counter(row.outcome for row in rows)
    assert outcomes[Outcome.COMPLETED] == chaos.ended["completed"]
    assert outcomes[Outcome.CLIENT_LEFT] == chaos.ended["left"]
    assert min(outcomes.values()) > 0, "the chaos must reach every outcome"
    assert len(chaos.ended) > 4
    assert all(row.completion_tokens == 0 for row in rows if row.outcome is Outcome.REFUSED)
