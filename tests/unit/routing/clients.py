"""What the scheduler's tests share: requests, and clients that hold a lease until told to stop."""

from __future__ import annotations

import asyncio
import random

from inferd.clock import monotonic
from inferd.config.schema import Queue
from inferd.errors import InferdError
from inferd.inference import Endpoint, InferenceRequest, Priority
from inferd.routing.scheduler import Scheduler

NONE: frozenset[str] = frozenset()


def request(
    team: str = "search",
    *,
    choices: int = 1,
    priority: Priority = Priority.INTERACTIVE,
    wait_s: float = 1e6,
    prompt_tokens: int = 100,
    output_tokens: int = 100,
) -> InferenceRequest:
    return InferenceRequest(
        request_id="req_1",
        team=team,
        key_id="key_1",
        endpoint=Endpoint.CHAT,
        model="m",
        pool="m@1",
        body={},
        prompt_bytes=350,
        prompt_tokens_estimated=prompt_tokens,
        output_tokens_max=output_tokens,
        output_tokens_given=True,
        choices=choices,
        stream=True,
        include_usage=False,
        priority=priority,
        deadline=monotonic() + wait_s,
    )


def scheduler(rng: random.Random | None = None, **limits: float) -> Scheduler:
    queue = Queue.model_validate(
        {"waiting_max": 100_000, "waiting_per_team_max": 100_000, "wait_s_max": 30.0, **limits}
    )
    return Scheduler("m@1", queue, rng or random.Random(1))


class Client:
    """One request's task: it holds its lease until it is told to stop."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        pool: Scheduler,
        asked: InferenceRequest,
        *,
        weight: int = 1,
        excluded: frozenset[str] = NONE,
        log: list[Client] | None = None,
    ) -> None:
        self.request = asked
        self.error: InferdError | None = None
        self.target: str | None = None
        self.wait_s: float | None = None
        self.running = asyncio.Event()
        self.stop = asyncio.Event()
        self._log = log
        self.task = group.create_task(self._run(pool, weight, excluded))

    async def _run(self, pool: Scheduler, weight: int, excluded: frozenset[str]) -> None:
        try:
            async with pool.ticket(self.request, weight, excluded) as lease:
                self.target, self.wait_s = lease.target, lease.queue_wait_s
                if self._log is not None:
                    self._log.append(self)
                self.running.set()
                await self.stop.wait()
        except InferdError as error:
            self.error = error

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait([self.task])


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def end_all(clients: list[Client]) -> None:
    for client in clients:
        client.stop.set()
    await asyncio.wait([client.task for client in clients])


def at_rest(pool: Scheduler) -> bool:
    snapshot = pool.snapshot()
    return (
        snapshot.leases_open == 0
        and not any(snapshot.waiting.values())
        and all(one.inflight == one.outstanding_tokens == 0 for one in snapshot.targets)
    )
