"""Two workers for one request: one computes its prompt, the other makes the answer of it.

Owns what joins them for one attempt: a fresh room, in which the engines pass the KV cache on, and
the time by which an output must have come. Both sides get the same body. A side that fails ends the
other's part at once: the engines would wait for each other for minutes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from inferd.clock import monotonic
from inferd.errors import (
    InferdError,
    UnsupportedFeature,
    UpstreamError,
    WorkerTimeout,
    WorkerUnreachable,
)
from inferd.inference import NO_PREFIX, InferenceRequest, Usage
from inferd.upstream.engine_error import from_body
from inferd.workers.client import OK, Abandoned, WorkerClient
from inferd.workers.engine import HOST

if TYPE_CHECKING:
    from inferd.metrics import Metrics
    from inferd.routing.lease import Lease
    from inferd.routing.scheduler import Scheduler
    from inferd.settlement import Settlement
    from inferd.upstream.wire import Exchange

ROOMS: Final = 2**62
Payload = Callable[[InferenceRequest, WorkerClient, Mapping[str, Any]], bytes]


@dataclass(frozen=True, slots=True)
class Pairs:
    """The split pools of this node."""

    decoders: Mapping[str, Scheduler]
    """The decode side of each, by pool."""
    clients: Mapping[str, WorkerClient]
    ttft_timeout_of: Callable[[str], float]
    metrics: Metrics

    def has(self, request: InferenceRequest, target: str) -> bool:
        """Whether it takes two workers to answer it. Token counts need only one.

        While a pool is being split, those of its workers that do the whole still answer alone.
        """
        computes_prompts = self.clients[target].bootstrap_port is not None
        return computes_prompts and request.pool in self.decoders and request.endpoint.takes_claims

    @asynccontextmanager
    async def joined(
        self,
        request: InferenceRequest,
        weight: int,
        lease: Lease,
        attempt_id: str,
        settlement: Settlement,
        payload: Payload,
    ) -> AsyncIterator[Pair]:
        """Find who decodes, and have the prompt computed by the lease's worker meanwhile.

        Raises, beside what the decode side's queue does:
            UnsupportedFeature: several choices.
            UpstreamError: a side was lost, or nothing came in time.
        """
        if request.choices > 1:
            raise UnsupportedFeature(
                f"Unsupported value: `{request.model}` makes one answer at a time. Send several"
                " requests.",
                param="n",
            )
        placed = False
        try:
            bare = replace(request, prefix=NO_PREFIX)
            decoder = self.decoders[request.pool]
            async with decoder.ticket(bare, weight, settlement.workers_failed) as decoding:
                settlement.placed(lease, attempt_id, decoding)
                placed = True
                pair = Pair(self, request, lease, decoding, attempt_id, payload)
                failure: Exception | None = None
                try:
                    async with asyncio.TaskGroup() as group:
                        prompt = group.create_task(pair.compute_prompt())
                        try:
                            yield pair
                        except Exception as error:  # noqa: BLE001 - raised again, ungrouped
                            failure = pair.ended(error, settlement)
                        else:
                            pair.count("decode", "answered")
                        prompt.cancel()
                finally:
                    pair.close()
                if failure is not None:
                    raise failure
        finally:
            if not placed:
                lease.correct(Usage())  # its team's turn: nothing was computed


class Pair:
    """One attempt on two workers. Its own timer ends it if nothing comes in time."""

    def __init__(
        self,
        pairs: Pairs,
        request: InferenceRequest,
        lease: Lease,
        decoding: Lease,
        attempt_id: str,
        payload: Payload,
    ) -> None:
        self.decoding = decoding
        self.failure: InferdError | None = None
        """What ended it, if it was not the exchange of the side that decodes."""
        self._pairs = pairs
        self._request = request
        self._lease = lease
        self._attempt_id = attempt_id
        self._payload = payload
        self._exchange: Exchange | None = None
        self._prompt_done = False
        self._output_seen = False
        self._limit_s = pairs.ttft_timeout_of(request.pool)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limit_s, self._late)
        self.fields: Mapping[str, Any] = {
            "bootstrap_host": HOST,
            "bootstrap_port": pairs.clients[lease.target].bootstrap_port,
            "bootstrap_room": secrets.randbelow(ROOMS),
        }
        """What both bodies have beside the request's own."""

    def answers_on(self, exchange: Exchange) -> None:
        """The answer will come on `exchange`."""
        self._exchange = exchange
        exchange.pardoned = not self._prompt_done
        if self.failure is not None:
            self._end_answer()

    def first_token(self, now: float) -> None:
        """The first output of a stream has come."""
        self._output_seen = True
        self.decoding.first_token(now)

    @property
    def revoked(self) -> bool:
        """Whether either side had to make room for interactive work."""
        return self._lease.revoked or self.decoding.revoked

    def ended(self, error: Exception, settlement: Settlement) -> Exception:
        """What the request is told of how its answer ended; the worker at fault is blamed."""
        failure = self.failure or error
        of_prompt = self.failure is not None and not self._prompt_done
        settlement.blame(self._lease.target if of_prompt else self.decoding.target)
        if self.failure is None and isinstance(error, UpstreamError):
            self.count("decode", "failed")
        return failure

    def count(self, side: str, outcome: str) -> None:
        self._pairs.metrics.pool[self._request.pool].sides[side, outcome].inc()

    def close(self) -> None:
        """Nobody waits any more."""
        self._timer.cancel()

    async def compute_prompt(self) -> None:
        """The prefill side's part; its one token is of no use. Never raises an InferdError."""
        client = self._pairs.clients[self._lease.target]
        request = self._request
        body = self._payload(replace(request, stream=False), client, self.fields)
        try:
            async with client.exchange(request.endpoint.engine_path, body) as exchange:
                await self._read(client, exchange)
        except InferdError as error:
            self.count("prefill", "failed")
            if not self._output_seen:
                self._fail(error)
            return
        self._prompt_done = True
        if self._exchange is not None:
            self._exchange.pardoned = False
        self.count("prefill", "answered")
        self._lease.prompt_only = True
        self._lease.first_token(monotonic())
        self._lease.release()

    async def _read(self, client: WorkerClient, exchange: Exchange) -> None:
        try:
            status, body = await exchange.head(), await exchange.read_all()
            if status != OK:
                raise from_body(status, body)
        finally:
            if exchange.whole or exchange.failed:
                exchange.finish()
            else:  # told to stop, for it would wait in its room for minutes
                client.abandon(Abandoned(exchange, self._attempt_id, _Nobody(), _not_billed))

    def _late(self) -> None:
        if self._prompt_done and (self._output_seen or not self._request.stream):
            return
        self.count("decode" if self._prompt_done else "prefill", "late")
        message = f"The workers gave no output within {self._limit_s:g} s."
        self._fail(WorkerTimeout(message))

    def _fail(self, error: InferdError) -> None:
        if self.failure is None:
            self.failure = error
            self._end_answer()

    def _end_answer(self) -> None:
        if self._exchange is not None:
            self._exchange.fail(WorkerUnreachable("Its partner was lost."))


class _Nobody:
    """Reads what nobody waits for."""

    done = False

    def feed(self, data: bytes) -> bytes:
        return data


def _not_billed() -> None:
    """The answer's own side has the bill."""
