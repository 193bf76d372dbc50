"""One worker's calls: an exchange, an abort, a probe. Owns the open exchanges and the aborts.

Whoever leaves an answer half-way hands its exchange to `abandon`: the engine is told to abort the
request by id, and the connection is read on until the usage has come, so that the bill is exact.
`run` is the service that does so; it belongs to the task group of whoever owns the worker.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from inferd.errors import InferdError, InvalidAnswer, UpstreamError, WorkerTimeout
from inferd.upstream.engine_error import from_body
from inferd.upstream.wire import Exchange, WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferd.workers.adapters import Adapters

ABANDONED_MAX: Final = 1_024
"""Exchanges waiting for their last usage; past it the connection is just closed."""
ABANDON_S_MAX: Final = 1.0
"""The engine answers an abort within 0.1 s; a worker that does not is not waited for."""
PROBE_BYTES_MAX: Final = 4_194_304
OK: Final = 200


class Reader(Protocol):
    """What goes on reading an abandoned answer: the relay or collector that began it."""

    @property
    def done(self) -> bool: ...

    def feed(self, data: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Abandoned:
    """An answer that nobody waits for any more. `settle` is called exactly once."""

    exchange: Exchange
    attempt_id: str | None
    reader: Reader
    settle: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Debt:
    """What a worker owes its open exchanges."""

    owed: int
    """Answers that wait for it; not those that wait for a slow client of ours."""
    begun: int
    """Of those, answers whose head has come."""
    heard: int
    """Reads of answers since the beginning: it only grows."""


class WorkerClient:
    """HTTP to one worker.

    `speaks_sglang`: aborts by id and load reports exist there. `model`: the name it wants to be
    asked for, if that is not the public one.
    """

    def __init__(
        self,
        worker_id: str,
        url: str,
        api_key: str | None,
        *,
        speaks_sglang: bool = True,
        model: str | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.worker_id = worker_id
        self.url = url
        self.speaks_sglang = speaks_sglang
        self.model = model
        self.bootstrap_port: int | None = None
        """Where those that decode meet it, if it computes prompts for them."""
        self.adapters: Adapters | None = None
        """Those that its engine may be asked for, if it keeps any."""
        self.tokens_per_event = 1
        """The most that the engine puts into one event of a stream."""
        self._pool = WorkerPool(url, headers)
        self._open: set[Exchange] = set()
        self._abandoned: asyncio.Queue[Abandoned] = asyncio.Queue(ABANDONED_MAX)
        self._running = False
        self._failure: UpstreamError | None = None
        self._failures = 0
        self._heard = 0
        self._closed = False
        self.on_abort: Callable[[bool], None] | None = None
        """Told of every abort whether the engine confirmed it."""

    def exchange(
        self, path: str, payload: bytes, traceparent: str | None = None
    ) -> AbstractAsyncContextManager[Exchange]:
        """POST `payload`; the exchange is closed at the end of the scope unless abandoned.

        Raises, on entering:
            WorkerUnreachable: the worker does not accept connections.
            UpstreamError: what `fail_all` or `close` was given meanwhile, or `close` before.
        """
        return _Exchanging(self, path, payload, traceparent)

    async def begin(self, path: str, payload: bytes, traceparent: str | None) -> Exchange:
        """For `exchange` only: enter its scope."""
        if self._closed and self._failure is not None:
            raise self._failure
        failures = self._failures
        exchange = await self._pool.open("POST", path, payload, traceparent)
        if self._failure is not None and self._failures != failures:  # told while it connected
            exchange.close()
            raise self._failure
        self._open.add(exchange)
        return exchange

    def end(self, exchange: Exchange) -> None:
        """For `exchange` only: leave its scope."""
        if exchange in self._open:
            self._forget(exchange)
            exchange.close()

    def abandon(self, left: Abandoned) -> None:
        """Take over an exchange in the middle of its answer. Synchronous; never fails."""
        self._forget(left.exchange)
        if not self._running or self._abandoned.full():
            left.exchange.close()
            left.settle()
            return
        self._abandoned.put_nowait(left)

    def debt(self) -> Debt:
        """What the worker owes now, and how much has come from it so far."""
        waiting = [
            exchange for exchange in self._open if not (exchange.unread or exchange.pardoned)
        ]
        return Debt(
            owed=len(waiting),
            begun=sum(exchange.begun for exchange in waiting),
            heard=self._heard + sum(exchange.reads for exchange in self._open),
        )

    def _forget(self, exchange: Exchange) -> None:
        if exchange in self._open:
            self._open.remove(exchange)
            self._heard += exchange.reads

    def fail_all(self, error: UpstreamError) -> None:
        """Every exchange that is open or being opened ends with `error`."""
        self._failure = error
        self._failures += 1
        for exchange in list(self._open):
            exchange.fail(error)

    def close(self, error: UpstreamError) -> None:
        """`fail_all`, and whoever comes later is told the same."""
        self._closed = True
        self.fail_all(error)

    async def settled(self) -> None:
        """Until all that was abandoned is settled, at most `ABANDON_S_MAX` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ABANDON_S_MAX):
                await self._abandoned.join()

    async def run(self) -> None:
        """Serve the abandoned exchanges until cancelled; then settle what is left at once."""
        self._running = True
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    left = await self._abandoned.get()
                    group.create_task(self._wind_up(left))
        finally:
            self._running = False
            while not self._abandoned.empty():
                left = self._abandoned.get_nowait()
                left.exchange.close()
                left.settle()
                self._abandoned.task_done()
            self._pool.close()

    async def ready(self, timeout_s: float) -> bool:
        """Whether the worker says that it takes requests. False also when it cannot be reached."""
        try:
            status, _ = await self._call("GET", "/ready", b"", timeout_s)
        except UpstreamError:
            return False
        return status == OK

    async def get(self, path: str, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of a GET.

        Raises:
            UpstreamError: unreachable, lost, or silent for `timeout_s` seconds.
        """
        return await self._call("GET", path, b"", timeout_s)

    async def post(self, path: str, payload: dict[str, Any], timeout_s: float) -> tuple[int, bytes]:
        """Status and body of a POST.

        Raises:
            UpstreamError: unreachable, lost, or silent for `timeout_s` seconds.
        """
        return await self._call("POST", path, orjson.dumps(payload), timeout_s)

    async def complete(
        self, path: str, payload: dict[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        """A whole JSON answer to a POST.

        Raises:
            UpstreamError, RequestError: the worker refused, failed or took too long.
        """
        status, body = await self._call("POST", path, orjson.dumps(payload), timeout_s)
        if status != OK:
            raise from_body(status, body)
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise InvalidAnswer("The worker's answer is not JSON.") from error
        if not isinstance(answer, dict):
            raise InvalidAnswer("The worker's answer is not a JSON object.")
        return answer

    async def abort(self, attempt_id: str) -> bool:
        """Ask the engine to stop one request. False if it did not confirm within a second."""
        return await self._abort({"rid": attempt_id})

    async def abort_all(self) -> bool:
        """Ask the engine to stop all requests, whoever sent them."""
        return await self._abort({"abort_all": True})

    async def _abort(self, what: dict[str, object]) -> bool:
        body = orjson.dumps(what)
        try:
            status, _ = await self._call("POST", "/abort_request", body, ABANDON_S_MAX)
        except UpstreamError:
            status = 0
        if self.on_abort is not None:
            self.on_abort(status == OK)
        return status == OK

    async def _call(
        self, method: str, path: str, body: bytes, timeout_s: float
    ) -> tuple[int, bytes]:
        exchange: Exchange | None = None
        try:
            async with asyncio.timeout(timeout_s):
                exchange = await self._pool.open(method, path, body)
                status = await exchange.head()
                return status, await exchange.read_all(PROBE_BYTES_MAX)
        except TimeoutError as error:
            raise WorkerTimeout(f"The worker did not answer within {timeout_s:g} s.") from error
        finally:
            if exchange is not None:
                exchange.close()

    async def _wind_up(self, left: Abandoned) -> None:
        try:
            if left.attempt_id is None or not self.speaks_sglang:
                return  # closing the connection is the only abort there is
            async with asyncio.timeout(ABANDON_S_MAX):
                await self.abort(left.attempt_id)
                await left.exchange.head()
                while not left.reader.done and (data := await left.exchange.read()):
                    left.reader.feed(data)
        except (TimeoutError, InferdError):
            return  # no usage came: the bill is what was relayed, marked as estimated
        finally:
            left.exchange.close()
            left.settle()
            self._abandoned.task_done()


class _Exchanging(AbstractAsyncContextManager[Exchange]):
    """The scope of one exchange. Made from a generator, it would cost twice as much."""

    __slots__ = ("_asked", "_client", "_exchange")

    def __init__(
        self, client: WorkerClient, path: str, payload: bytes, traceparent: str | None
    ) -> None:
        self._client = client
        self._asked: tuple[str, bytes, str | None] | None = (path, payload, traceparent)
        self._exchange: Exchange | None = None

    async def __aenter__(self) -> Exchange:
        assert self._asked is not None, "entered once"
        path, payload, traceparent = self._asked
        self._asked = None  # a prompt is not kept for as long as its answer takes
        self._exchange = exchange = await self._client.begin(path, payload, traceparent)
        return exchange

    async def __aexit__(self, *raised: object) -> None:
        assert self._exchange is not None, "only what was entered is left"
        self._client.end(self._exchange)
