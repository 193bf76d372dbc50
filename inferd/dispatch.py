"""THE DATA PATH: reserve, queue, place, stream, settle. One request from top to bottom.

Interactive requests, batch lines and warm-ups differ only in their sink. Every claim is a context
manager and is given back exactly once; the settlement of an answer that nobody waits for any more
travels with its exchange to the worker's client, which reads the bill and closes it.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from inferd.clock import monotonic
from inferd.edges import Edges
from inferd.ending import Ending
from inferd.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    NoWorker,
    Preempted,
    ShuttingDown,
    UpstreamError,
    WorkerFailedMidStream,
)
from inferd.inference import InferenceRequest, Priority, Usage, new_attempt_id
from inferd.upstream.connection import Taker
from inferd.upstream.engine_error import from_body
from inferd.workers.client import OK, Abandoned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from inferd.pairs import Pair, Pairs
    from inferd.routing.lease import Lease
    from inferd.routing.scheduler import Scheduler
    from inferd.settlement import Ledger, Record, Settlement
    from inferd.upstream.wire import Exchange
    from inferd.workers.client import WorkerClient

WORKERS_LOST_MAX = 1
"""A request that has lost more workers than this is not placed again."""
PREEMPTED_PAUSE_S = 0.25
"""An engine that evicts would be sent the same request again and again."""
NOTHING_MORE: Mapping[str, Any] = MappingProxyType({})
ENGINE_PRIORITY = {Priority.INTERACTIVE: 0, Priority.BATCH: -100}
"""Higher first; the engine preempts when the difference exceeds its threshold of 10."""


class Answer(Protocol):
    """Reads one attempt's bytes: a stream's relay, or the collector of a whole answer."""

    @property
    def done(self) -> bool: ...

    def feed(self, data: bytes) -> bytes: ...

    def end(self) -> bytes: ...

    def client_left(self) -> None: ...

    def bill(self) -> Usage: ...


class Sink(Taker, Protocol):
    """Where an answer goes: a taker relays at once, and declines what needs a look or a wait.

    `content_sent`: the client has seen a part of it, the last one at loop time `output_at`.
    """

    content_sent: bool
    output_at: float

    def answer(self, request: InferenceRequest, attempt_id: str) -> Answer: ...

    async def send(self, data: bytes) -> None: ...


class Dispatch:
    """Joins buckets, schedulers and workers; owns only the count of requests in flight."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        schedulers: Mapping[str, Scheduler],
        clients: Mapping[str, WorkerClient],
        weight_of: Callable[[str], int],
        pairs: Pairs | None = None,
    ) -> None:
        self._ledger = ledger
        self._edges = Edges(ledger.exact, ledger.buckets, schedulers)
        self._schedulers = schedulers
        self._clients = clients
        self._weight_of = weight_of
        self._pairs = pairs
        self._in_flight = 0
        self._closing = False

    @property
    def in_flight(self) -> int:
        return self._in_flight

    async def run(
        self, request: InferenceRequest, sink: Sink, record: Record | None = None
    ) -> None:
        """Serve one request into `sink`; `record` takes its ledger row instead of the ledger.

        Raises:
            InferdError: refused or failed; nothing is owed for what was refused.
            DeadlineExceeded: `request.deadline` passed.
        """
        with self._counted(), self._ledger.open(request, record) as settlement:
            if record is None and self._edges.decide(request):
                request = await self._edges.count(request)
                settlement.counted(request)
            settlement.reserve()  # 1 bucket
            with Ending() as ending:
                timer = asyncio.get_running_loop().call_at(request.deadline, ending.end, _too_late)
                try:
                    await self._serve(request, sink, settlement)
                finally:
                    timer.cancel()

    async def _serve(self, request: InferenceRequest, sink: Sink, settlement: Settlement) -> None:
        """Queue, place, stream; once more on another worker if the client has seen nothing."""
        lost: UpstreamError | None = None
        while True:
            try:
                scheduler = self._scheduler(request)
                weight = self._weight_of(request.team)
                failed = settlement.workers_failed
                async with scheduler.ticket(request, weight, failed) as lease:  # 2 queue, 3 place
                    await self._attempt(request, lease, sink, settlement)  # 4 stream
                return
            except ContextLengthExceeded as error:
                request = _fitted(request, error, settlement)
            except NoWorker:
                if lost is not None:
                    raise lost from None
                raise
            except Preempted:  # interactive requests took its place: once more, at no charge
                if sink.content_sent:
                    raise
                settlement.preempted()
                await asyncio.sleep(PREEMPTED_PAUSE_S)
            except UpstreamError as error:
                if sink.content_sent:
                    if isinstance(error, WorkerFailedMidStream | ShuttingDown):
                        raise
                    raise WorkerFailedMidStream(error.message) from error
                if not error.retryable or len(settlement.workers_failed) >= WORKERS_LOST_MAX:
                    raise
                lost = error
                settlement.worker_failed()

    async def _attempt(
        self, request: InferenceRequest, lease: Lease, sink: Sink, settlement: Settlement
    ) -> None:
        attempt_id = new_attempt_id(request.endpoint)
        if self._pairs is not None and self._pairs.has(request, lease.target):
            await self._attempt_in_pair(request, lease, attempt_id, sink, settlement)
            return
        client = self._clients[lease.target]
        settlement.placed(lease, attempt_id)
        answer = sink.answer(_as_told_by(client, request), attempt_id)
        if request.adapter is None:
            await self._exchange(request, client, attempt_id, lease, answer, sink, settlement)
        elif client.adapters is None:
            raise NoWorker(f"No worker serves {request.model!r} any more.", retry_after_s=10)
        else:
            async with client.adapters.use(request.adapter.key):
                await self._exchange(request, client, attempt_id, lease, answer, sink, settlement)

    async def _attempt_in_pair(
        self,
        request: InferenceRequest,
        lease: Lease,
        attempt_id: str,
        sink: Sink,
        settlement: Settlement,
    ) -> None:
        """As `_attempt`, with the prompt on the lease's worker and the answer from another one."""
        assert self._pairs is not None
        weight = self._weight_of(request.team)

        def payload(
            request: InferenceRequest, client: WorkerClient, more: Mapping[str, Any]
        ) -> bytes:
            return engine_payload(request, attempt_id, client, more)

        async with self._pairs.joined(
            request, weight, lease, attempt_id, settlement, payload
        ) as pair:
            decoding = pair.decoding
            client = self._clients[decoding.target]
            answer = sink.answer(_as_told_by(client, request), attempt_id)
            await self._exchange(
                request, client, attempt_id, decoding, answer, sink, settlement, pair
            )

    async def _exchange(
        self,
        request: InferenceRequest,
        client: WorkerClient,
        attempt_id: str,
        lease: Lease,
        answer: Answer,
        sink: Sink,
        settlement: Settlement,
        pair: Pair | None = None,
    ) -> None:
        more = pair.fields if pair else NOTHING_MORE
        async with client.exchange(
            request.endpoint.engine_path,
            engine_payload(request, attempt_id, client, more),  # in no variable: it may be large
            settlement.traceparent,
        ) as exchange:
            if pair is not None:
                pair.answers_on(exchange)
            try:
                first_of = (pair or lease) if request.stream else None
                await self._relay(exchange, answer, sink, settlement, first_of)
            finally:
                settlement.output_ended(sink.output_at)
                lost_partner = pair is not None and pair.failure is not None
                if answer.done or exchange.whole or (exchange.failed and not lost_partner):
                    settlement.bill(answer)  # 5 settle
                    exchange.finish()
                else:  # the engine is still at it: it is told to stop, and its bill read afterwards
                    answer.client_left()
                    known = attempt_id if request.choices == 1 else None
                    revoked = (pair or lease).revoked
                    settle = (settlement.forget if revoked else settlement.postpone)(answer)
                    client.abandon(Abandoned(exchange, known, answer, settle))

    async def _relay(
        self,
        exchange: Exchange,
        answer: Answer,
        sink: Sink,
        settlement: Settlement,
        first_of: Lease | Pair | None,
    ) -> None:
        status = await exchange.head()
        if status != OK:
            raise from_body(status, await exchange.read_all())

        while not answer.done and (data := await exchange.read()):
            if first_of is not None:  # the engine says nothing before its first token
                first_of.first_token(monotonic())
                first_of = None
            out = answer.feed(data)
            if out:
                settlement.output_sent()
                await sink.send(out)
            await exchange.push(sink)  # no task runs for a common event
        if last := answer.end():
            await sink.send(last)

    def close(self, error: ShuttingDown) -> None:
        """The grace is over: everything in flight ends with `error`, and so does what comes."""
        self._closing = True
        decoders = self._pairs.decoders if self._pairs else {}
        for scheduler in (*self._schedulers.values(), *decoders.values()):
            scheduler.fail_waiting(error)
        for client in self._clients.values():
            client.fail_all(error)

    def _scheduler(self, request: InferenceRequest) -> Scheduler:
        if self._closing:
            raise ShuttingDown("inferd is shutting down.", retry_after_s=10)
        scheduler = self._schedulers.get(request.pool)
        if scheduler is None:
            raise NoWorker(f"No worker serves {request.model!r} any more.", retry_after_s=10)
        return scheduler

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("The request took longer than it may.")


def _as_told_by(client: WorkerClient, request: InferenceRequest) -> InferenceRequest:
    """The request as its worker answers it: an engine may put several tokens into one event."""
    if client.tokens_per_event == request.tokens_per_event:
        return request
    return replace(request, tokens_per_event=client.tokens_per_event)


def _fitted(
    request: InferenceRequest, error: ContextLengthExceeded, settlement: Settlement
) -> InferenceRequest:
    """The request as it may fit: in a pool of longer contexts, or with less output.

    The first if its prompt is longer than was estimated; the second is as much as the prompt leaves
    room for, where the client set no limit.

    Raises:
        ContextLengthExceeded: neither, or the engine did not say how much is left.
    """
    room_tokens = error.room_tokens
    fits = room_tokens is not None and room_tokens >= 1 and not request.output_tokens_given
    if request.longer_pool is not None and not fits:
        settlement.refused()
        longer = replace(request, pool=request.longer_pool, longer_pool=None)
        settlement.moved(longer)
        return longer
    if not fits or room_tokens is None:
        raise error.about(request.endpoint.prompt_param) from None
    settlement.refused()
    return replace(request, output_tokens_max=room_tokens, output_tokens_given=True)


def engine_payload(
    request: InferenceRequest,
    attempt_id: str,
    client: WorkerClient,
    more: Mapping[str, Any] = NOTHING_MORE,
) -> bytes:
    """The body for the engine: the client's, plus the fields that are ours to set.

    Usage is always asked for: without it nobody could bill. `extra_key` keeps one team from timing
    the prefix cache of another, unless the pool's `cache_scope` is `shared`.
    """
    body = {**request.body, "model": client.model or request.model, **more}
    if request.endpoint.generates:
        body["stream"] = request.stream
        body["max_tokens"] = request.output_tokens_max
        if request.choices > 1:
            body.setdefault("n", request.choices)
        if request.stream:
            body["stream_options"] = {"include_usage": True}
    if client.speaks_sglang and request.endpoint.takes_claims:
        body["priority"] = ENGINE_PRIORITY[request.priority]
        if request.adapter is not None:
            body["lora_path"] = request.adapter.key
        if request.endpoint.generates and not request.shared_cache:
            body["extra_key"] = request.team
        if request.choices == 1:
            body["rid"] = attempt_id
    return orjson.dumps(body)
