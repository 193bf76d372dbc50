"""A worker without a socket: the real `WorkerClient` over a scripted wire, for virtual time.

It behaves as SGLang does where the data path can tell: answers token by token, counts usage, stops
on an abort by id and then still tells what it cost. What it does wrong is set by its attributes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import orjson

from inferd.errors import UpstreamError, WorkerUnreachable
from inferd.upstream.connection import Taker
from inferd.workers.client import WorkerClient

PROMPT_TOKENS = 20


class ScriptedExchange:
    """Has the interface of `upstream.wire.Exchange`."""

    def __init__(self, worker: ScriptedWorker, payload: dict[str, Any]) -> None:
        self.payload = payload
        self.worker = worker
        self.whole = False
        self.aborted = False
        self.closed = False
        self._error: UpstreamError | None = None
        self._sent = 0
        self._ready: deque[bytes] = deque()
        self._changed = asyncio.Event()

    @property
    def reads(self) -> int:
        return self._sent

    @property
    def begun(self) -> bool:
        return self._sent > 0

    @property
    def unread(self) -> bool:
        return bool(self._ready)

    @property
    def failed(self) -> bool:
        return self._error is not None

    async def head(self) -> int:
        await self._pause(self.worker.first_token_s)
        if self.worker.status != 200:
            self._ready.append(self.worker.body)
            return self.worker.status
        room = self.worker.refuse_above_tokens
        if room is not None and self.payload["max_tokens"] > room:
            self.whole = True
            self._ready.append(_too_long(room, self.payload["max_tokens"]))
            return 400
        return 200

    async def read(self) -> bytes:
        if self._ready:
            return self._ready.popleft()
        if self.whole or self.worker.status != 200:
            self.whole = True
            return b""
        if not self.payload["stream"]:
            return await self._body()
        return await self._event()

    async def push(self, taker: Taker) -> None:
        if self._ready or not self.payload["stream"] or self.worker.status != 200:
            return
        while not self.whole and (data := await self.read()):
            framed = b"%x\r\n%b\r\n" % (len(data), data)
            if not taker.push_chunk(framed) and not taker.push(data):
                self._ready.append(data)
                return

    async def read_all(self, bytes_max: int = 0) -> bytes:
        del bytes_max
        parts = []
        while data := await self.read():
            parts.append(data)
        return b"".join(parts)

    def fail(self, error: UpstreamError) -> None:
        if not self.whole and not self.closed:
            self._error = error
            self._changed.set()

    def abort(self) -> None:
        self.aborted = True
        self._changed.set()

    def finish(self) -> None:
        self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.worker.open.discard(self)

    async def _event(self) -> bytes:
        if self.worker.error_event is not None:
            return await self._error_event(self.worker.error_event)
        wanted = self.payload["max_tokens"]
        if self._sent == 0:
            self._sent = 1
            return self._chunk({"role": "assistant", "content": ""}) + self._chunk({"content": "t"})
        if self._sent < wanted and not self.aborted:
            await self._pause(self.worker.token_s)
            if self.worker.cut_after is not None and self._sent >= self.worker.cut_after:
                raise self._cut()
        if self._sent < wanted and not self.aborted:
            self._sent += 1
            return self._chunk({"content": "t"})
        self.whole = True
        reason = "abort" if self.aborted else "length"
        usage = orjson.dumps({**self._head(), "choices": [], "usage": self._usage()})
        return self._chunk({}, reason) + b"data: " + usage + b"\n\ndata: [DONE]\n\n"

    async def _error_event(self, event: bytes) -> bytes:
        """As SGLang tells an error after its queue: in a stream, whose end comes later."""
        if self._sent == 0:
            self._sent = 1
            return event
        await self._pause(self.worker.error_ends_s)
        self.whole = True
        return b"data: [DONE]\n\n"

    async def _body(self) -> bytes:
        wanted = self.payload["max_tokens"]
        while self._sent < wanted and not self.aborted:
            await self._pause(self.worker.token_s)
            self._sent += 1
            if self.worker.cut_after is not None and self._sent >= self.worker.cut_after:
                raise self._cut()
        self.whole = True
        message = {"role": "assistant", "content": "t" * self._sent}
        reason = "abort" if self.aborted else "length"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return orjson.dumps({**self._head(), "choices": [choice], "usage": self._usage()})

    def _cut(self) -> UpstreamError:
        self._error = WorkerUnreachable("The worker closed the connection.")
        return self._error

    async def _pause(self, seconds: float) -> None:
        """Time passes, unless the exchange is failed or aborted meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()
        if self._error is not None:
            raise self._error

    def _head(self) -> dict[str, Any]:
        rid = self.payload.get("rid", "x")
        return {"id": rid, "created": 1, "model": self.payload["model"], "object": "o"}

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return b"data: " + orjson.dumps({**self._head(), "choices": [choice]}) + b"\n\n"

    def _usage(self) -> dict[str, Any]:
        self.worker.billed += PROMPT_TOKENS + self._sent
        return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": self._sent}


def _too_long(room: int, asked: int) -> bytes:
    """SGLang's words for a prompt and an answer that do not fit together."""
    context = PROMPT_TOKENS + room
    message = (
        f"Requested token count exceeds the model's maximum context length of {context} tokens. "
        f"You requested a total of {PROMPT_TOKENS + asked} tokens: {PROMPT_TOKENS} tokens from the "
        f"input messages and {asked} tokens for the completion."
    )
    return orjson.dumps({"object": "error", "message": message, "code": 400})


class ScriptedWorker:
    """One worker: its client, what it was asked, and what it does wrong."""

    def __init__(self, worker_id: str) -> None:
        self.client = WorkerClient(worker_id, "http://scripted", None)
        self.client._pool = _Wire(self)  # type: ignore[assignment]
        self.open: set[ScriptedExchange] = set()
        self.requests: list[dict[str, Any]] = []
        self.aborts: list[str] = []
        self.traced: list[str] = []
        self.billed = 0
        self.first_token_s = 0.1
        self.token_s = 0.04
        self.status = 200
        self.body = b""
        self.cut_after: int | None = None
        self.refuses_connections = False
        self.ignores_aborts = False
        self.refuse_above_tokens: int | None = None
        self.error_event: bytes | None = None
        self.error_ends_s = 0.0


class _Wire:
    """Has the interface of `upstream.wire.WorkerPool`."""

    def __init__(self, worker: ScriptedWorker) -> None:
        self._worker = worker

    async def open(
        self, method: str, path: str, body: bytes = b"", traceparent: str | None = None
    ) -> ScriptedExchange | _Answered:
        del method
        if traceparent is not None:
            self._worker.traced.append(traceparent)
        worker = self._worker
        await asyncio.sleep(0)
        if worker.refuses_connections:
            raise WorkerUnreachable("The worker does not accept connections.")
        payload = orjson.loads(body)
        if path == "/abort_request":
            worker.aborts.append(payload["rid"])
            if not worker.ignores_aborts:
                for running in worker.open:
                    if str(running.payload.get("rid")).startswith(payload["rid"]):
                        running.abort()
            return _Answered()
        worker.requests.append(payload)
        exchange = ScriptedExchange(worker, payload)
        worker.open.add(exchange)
        return exchange

    def close(self) -> None:
        """The client has ended; exchanges are closed by whoever opened them."""


class _Answered:
    """The engine's answer to an abort."""

    whole = True
    failed = False

    async def head(self) -> int:
        return 200

    async def read_all(self, bytes_max: int = 0) -> bytes:
        del bytes_max
        return b""

    def close(self) -> None:
        """Nothing is held."""
