"""The data path for tests: every real part of it, over scripted workers, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from prometheus_client import CollectorRegistry

from inferd.api.whole_answer import Collector
from inferd.clock import monotonic, utc_now_us
from inferd.config.money import Prices
from inferd.config.schema import Model, Queue, Targets, Team
from inferd.config.version import AttachedWorker, Version
from inferd.dispatch import Dispatch
from inferd.inference import Endpoint, InferenceRequest, Priority, new_request_id
from inferd.metrics import Metrics
from inferd.pairs import Pairs
from inferd.quota.buckets import Buckets
from inferd.quota.budgets import Budgets
from inferd.quota.estimate import Estimator
from inferd.quota.exact_counts import ExactCounts
from inferd.quota.prices import PriceList
from inferd.routing.scheduler import Scheduler
from inferd.settlement import Ledger
from inferd.storage.unbilled import UnbilledAttempt
from inferd.storage.usage import UsageRow
from inferd.upstream.chat_relay import ChatRelay
from tests.fakes.scripted_worker import ScriptedWorker

POOL = "chat@1"
PRICED = Model(
    name="chat",
    default_version="1",
    context_tokens_max=4_096,
    output_tokens_max=1_024,
    versions=(
        Version(
            version="1",
            attached=(AttachedWorker(url="http://127.0.0.1:1"),),
            prices=Prices(input=0.15, cached_input=0.075, output=0.6, batch_output=0.3),
        ),
    ),
)


class CollectedStream:
    """A sink that reads all it is sent; `reads_s` is how long it takes for each piece."""

    def __init__(self, reads_s: float = 0.0) -> None:
        self.content_sent = False
        self.output_at = 0.0
        self.received = b""
        self._reads_s = reads_s
        self._relay: ChatRelay | None = None

    def answer(self, request: InferenceRequest, attempt_id: str) -> ChatRelay | Collector:
        self._relay = ChatRelay(request, attempt_id) if request.stream else None
        return self._relay or Collector(request, attempt_id)

    def push(self, data: bytes) -> bool:
        out = self._relay.pass_through(data) if self._relay and not self._reads_s else None
        if out is None:
            return False
        self.output_at = asyncio.get_running_loop().time()
        self.received += out
        return True

    def push_chunk(self, chunk: bytes) -> bool:
        out = self._relay.pass_chunk(chunk) if self._relay and not self._reads_s else None
        if out is None:
            return False
        self.output_at = asyncio.get_running_loop().time()
        self.received += out[out.find(b"\r\n") + 2 : -2]
        return True

    async def send(self, data: bytes) -> None:
        self.content_sent = True
        self.received += data
        if self._reads_s:
            await asyncio.sleep(self._reads_s)


class DataPath:
    """Buckets, scheduler, dispatch and ledger, and the workers behind them."""

    def __init__(
        self,
        *workers: str,
        team: Team | None = None,
        slots: int = 4,
        exact: ExactCounts | None = None,
        decoders: tuple[str, ...] = (),
    ) -> None:
        """With `decoders` the pool is split: they answer, `workers` compute their prompts."""
        teams = [team or Team(name="search"), Team(name="other")]
        self.rows: list[UsageRow] = []
        self.buckets = Buckets(teams, monotonic())
        self.budgets = Budgets(teams, "USD", utc_now_us())
        self.prices = PriceList([PRICED])
        self.unbilled: list[UnbilledAttempt] = []
        self.scheduler = Scheduler(POOL, Queue(), random.Random(1))
        self.workers = {name: ScriptedWorker(name) for name in workers + decoders}
        self.decoder = Scheduler(f"{POOL}/decode", Queue(), random.Random(1))
        self.ledger = Ledger(
            buckets=self.buckets,
            budgets=self.budgets,
            prices=self.prices,
            estimator=Estimator(),
            metrics=Metrics(CollectorRegistry()),
            targets_of=lambda _: Targets(),
            record=self.rows.append,
            record_unbilled=self.unbilled.append,
        )
        if exact is not None:
            self.ledger.exact = exact
        clients = {name: worker.client for name, worker in self.workers.items()}
        sides = {POOL: self.decoder} if decoders else {}
        for name in workers if decoders else ():
            clients[name].bootstrap_port = 1
        self.dispatch = Dispatch(
            ledger=self.ledger,
            schedulers={POOL: self.scheduler},
            clients=clients,
            weight_of=lambda _: 1,
            pairs=Pairs(sides, clients, lambda _: 10.0, self.ledger.metrics),
        )
        for name in workers:
            self.scheduler.target_up(name, slots)
        for name in decoders:
            self.decoder.target_up(name, slots)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[asyncio.TaskGroup]:
        """The workers' clients run inside; it is left when all that was started has ended."""
        async with asyncio.TaskGroup() as services:
            clients = [services.create_task(w.client.run()) for w in self.workers.values()]
            await asyncio.sleep(0)
            async with asyncio.TaskGroup() as requests:
                yield requests
            await asyncio.sleep(5)  # the last abandoned answer has been wound up
            for client in clients:
                client.cancel()

    def request(self, **changes: object) -> InferenceRequest:
        base = InferenceRequest(
            request_id=new_request_id(),
            team="search",
            key_id="key",
            endpoint=Endpoint.CHAT,
            model="chat",
            pool=POOL,
            body={"messages": []},
            prompt_bytes=70,
            prompt_tokens_estimated=20,
            output_tokens_max=10,
            output_tokens_given=True,
            choices=1,
            stream=True,
            include_usage=False,
            priority=Priority.INTERACTIVE,
            deadline=monotonic() + 600,
        )
        return replace(base, **changes)  # type: ignore[arg-type]

    def assert_at_rest(self) -> None:
        """Nothing is claimed any more, anywhere."""
        assert self.dispatch.in_flight == 0
        assert self.ledger.open_count == 0
        for scheduler in (self.scheduler, self.decoder):
            assert scheduler.leases_open == 0
            assert scheduler.inflight == 0
            assert all(scheduler.depth(priority) == 0 for priority in Priority)
        assert all(not worker.open for worker in self.workers.values())
        for team in self.buckets.snapshot(monotonic()):
            assert (team.outstanding_tokens, team.outstanding_requests) == (0, 0)
        assert len({row.request_id for row in self.rows}) == len(self.rows)
