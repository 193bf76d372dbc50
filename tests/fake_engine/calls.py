"""What chat and plain completions share: plan the sequences, run them, answer or refuse.

A `Call` is one HTTP request; each of its `n` choices is one generation. With n > 1 the real engine
first runs the bare prompt, then gives every choice an id of its own: an abort by the request's id
finds nothing, and every chunk carries its choice's id.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

from tests.fake_engine import shapes
from tests.fake_engine.answers import Direction, Script, prose
from tests.fake_engine.engine import Engine
from tests.fake_engine.faults import Fault
from tests.fake_engine.refusal import Refusal
from tests.fake_engine.scheduler import Generation, Sink
from tests.fake_engine.schema import Sampling
from tests.fake_engine.streams import StreamOut
from tests.fake_engine.tokens import Token
from tests.fake_engine.wire import Exchange

DISCONNECT_POLL_S = 4.0
# After a stream the real server aborts its id once more, whoever has the id by then.
CLEAN_UP_S = 2.0


@dataclass(slots=True, eq=False)
class Choice:
    """One sequence of a call, and the sink of its generation."""

    call: Call
    index: int
    generation: Generation
    writer: shapes.ChunkWriter
    tokens: list[Token] = field(default_factory=list)
    sent: int = 0
    shown: int = 0

    @property
    def pending(self) -> str:
        """Text that was not sent. A stop string can take back what waited."""
        return self.generation.text[self.shown :]

    def take(self) -> str:
        """The pending text and all tokens so far count as sent."""
        text = self.pending
        self.shown += len(text)
        self.sent = len(self.tokens)
        return text

    def token(self, generation: Generation, token: Token) -> None:
        self.tokens.append(token)
        self.call.on_token(self)

    def finished(self, generation: Generation) -> None:
        self.call.engine.ended(generation)
        self.call.on_finished(self)


class Quiet:
    """The sink of a sequence whose tokens nobody reads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.done = asyncio.Event()

    def token(self, generation: Generation, token: Token) -> None:
        """Only the end counts."""

    def finished(self, generation: Generation) -> None:
        self._engine.ended(generation)
        self.done.set()


class Call(ABC):
    """One request on its way through the engine."""

    object_name: str

    def __init__(
        self, engine: Engine, exchange: Exchange, request: Sampling, plan: dict[str, Fault]
    ) -> None:
        self.engine = engine
        self.exchange = exchange
        self.request = request
        self.plan = plan
        self.created = int(datetime.now(UTC).timestamp())
        self.rid = request.rid or engine.new_rid()
        self.prompt: list[int] = []
        self.prompts: list[list[int]] = []
        """Of a request with several; `prompt` is then all of them, for the bill."""
        self.choices: list[Choice] = []
        self.finished_choices: list[Choice] = []
        self.done = asyncio.Event()
        self.out = StreamOut(exchange, plan, engine.tasks)

    @abstractmethod
    def script(self, seed: int) -> Script:
        """The answer of one choice."""

    @abstractmethod
    def on_token(self, choice: Choice) -> None:
        """A token was made."""

    @abstractmethod
    def flush(self) -> None:
        """The client reads again: send what was held back."""

    @abstractmethod
    def close_stream(self) -> None:
        """All choices ended: send what remains of the stream, before usage and [DONE]."""

    @abstractmethod
    def choice_body(self, choice: Choice) -> dict[str, Any]:
        """One choice of a non-streamed answer."""

    @property
    def count(self) -> int:
        """Sequences: the choices of every prompt."""
        return self.request.n * max(1, len(self.prompts))

    @property
    def body_name(self) -> str:
        return self.object_name.removesuffix(".chunk")

    def max_new(self, asked: int | None) -> int:
        """Check the lengths. Raises Refusal as the real engine words it."""
        self.check_sampling(asked)
        context, size = self.engine.options.context_length, len(self.prompt)
        if size >= context:
            raise Refusal(
                400,
                f"The input ({size} tokens) is longer than the model's context length "
                f"({context} tokens).",
            )
        if asked is None:
            return context - size - 1
        if asked + size > context:
            raise Refusal(
                400,
                "Requested token count exceeds the model's maximum context length of "
                f"{context} tokens. You requested a total of {asked + size} tokens: {size} tokens "
                f"from the input messages and {asked} tokens for the completion. Please reduce "
                "the number of tokens in the input messages or the completion to fit within the "
                "limit.",
            )
        return asked

    def check_sampling(self, asked: int | None) -> None:
        """Refuse what no sampler takes. Raises Refusal."""
        if self.request.n < 1:
            raise Refusal(400, "range() arg 3 must not be zero", "BadRequest")
        if asked is not None and asked < 0:
            raise Refusal(400, f"max_new_tokens must be at least 0, got {asked}.")
        heat = self.request.temperature
        if heat is not None and heat < 0:
            message = f"temperature must be a non-negative finite number, got {heat}."
            raise Refusal(400, message)

    async def run(self, max_new: int) -> None:
        """Generate and answer. Raises Refusal."""
        if self.rid in self.engine.live:
            raise Refusal(400, f"Duplicate request ID detected: {self.rid}")
        self.out.on_broken = self._broken
        base = crc32(repr((self.prompt, self.request.seed, self.request.adapter)).encode())
        if self.request.n > 1:
            await self._warm()
        for index in range(self.count):
            rid = self.rid if self.count == 1 else self.engine.new_rid()
            self._start(index, rid, self.script(base + index), max_new)
        if self.request.stream:
            self.exchange.on_writable = self.flush
            self.exchange.on_gone = self._client_gone
            if self.exchange.gone.is_set():
                self._client_gone()
            await self.done.wait()
            delay = self.engine.options.scaled(CLEAN_UP_S)
            asyncio.get_running_loop().call_later(delay, self.engine.abort, self.rid)
        else:
            await self._await_whole()

    def _generation(self, rid: str, script: Script, max_new: int, sink: Sink) -> Generation:
        return Generation(
            rid=rid,
            prompt=self.prompt,
            script=script,
            max_new=max_new,
            priority=self.engine.options.priority(self.request.priority),
            sink=sink,
            extra_key=self.request.isolation,
            stops=self.request.stops,
            ignore_eos=self.request.ignore_eos,
            streaming=self.request.stream,
        )

    async def _warm(self) -> None:
        """The bare prompt, so that all choices find it in the cache."""
        sink = Quiet(self.engine)
        warm = self._generation(self.engine.new_rid(), prose(0, Direction()), 0, sink)
        warm.streaming = False
        self.engine.submit(warm)
        await sink.done.wait()
        if warm.error is not None:
            raise Refusal(503, warm.error, "503")

    def _start(self, index: int, rid: str, script: Script, max_new: int) -> None:
        writer = shapes.ChunkWriter(rid, self.object_name, self.created, self.request.model)
        generation = self._generation(rid, script, max_new, Quiet(self.engine))
        if self.prompts:
            generation.prompt = self.prompts[index // self.request.n]
        choice = Choice(self, index, generation, writer)
        generation.sink = choice
        self.choices.append(choice)
        if fault := self.plan.get("slow_first"):
            generation.stalled = True
            self.engine.tasks.create_task(self._release_later(generation, fault))
        self.engine.submit(generation)

    async def _release_later(self, generation: Generation, fault: Fault) -> None:
        await asyncio.sleep(fault.number("seconds"))
        generation.stalled = False
        self.engine.refreeze()

    async def _await_whole(self) -> None:
        poll = self.engine.options.scaled(DISCONNECT_POLL_S)
        while not self.done.is_set():
            try:
                async with asyncio.timeout(poll):
                    await self.done.wait()
            except TimeoutError:
                if self.exchange.gone.is_set():
                    self._client_gone()
                    await self.done.wait()
                    return
        self._respond()

    def due(self, choice: Choice) -> bool:
        """Whether a streamed choice sends now: the first token at once, then every interval.

        Text that may become a stop string waits, and so does everything while nobody reads.
        """
        unsent = len(choice.tokens) - choice.sent
        if not self.exchange.writable or not unsent:
            return False
        if choice.sent and unsent < self.engine.options.stream_interval:
            return False
        text = choice.generation.text
        return not any(
            text.endswith(stop[:length])
            for stop in choice.generation.stops
            for length in range(1, len(stop))
        )

    def _client_gone(self) -> None:
        self.engine.seen.disconnected += 1
        if self.engine.faults.find("ignore_disconnect") is None:
            self._abort_all()

    def _abort_all(self) -> None:
        for choice in self.choices:
            if choice.generation.reason is None:
                self.engine.abort(choice.generation.rid)

    def _broken(self) -> None:
        """A fault cut the stream: a silent one keeps its slot, any other gives it back."""
        if not self.out.silent:
            self._abort_all()
            return
        for choice in self.choices:
            choice.generation.stalled = True

    def on_finished(self, choice: Choice) -> None:
        self.finished_choices.append(choice)
        if self.done.is_set():
            return
        if self.request.stream and choice.generation.error:
            self.fail_stream(503, choice.generation.error, "SERVICE_UNAVAILABLE")
            return
        if len(self.finished_choices) < self.count:
            return
        if self.request.stream and not self.exchange.gone.is_set():
            self.close_stream()
            self._send_usage()
            self.out.done()
        self.done.set()

    def fail_stream(self, status: int, message: str, kind: str) -> None:
        """An error after the 200: an event, the usage if asked for, [DONE]."""
        self.out.frame(shapes.error_event(status, message, kind))
        if not self.choices and self.request.include_usage:
            cached = 0 if self.engine.options.cache_report else None
            self.out.frame(self.last_writer().final_usage(shapes.usage(1, 1, cached)))
        else:
            self._send_usage()
        self.out.done()
        self.done.set()

    def usage(self) -> dict[str, Any]:
        """As the real engine counts: the prompt once, nothing for what ended in the queue."""
        first = self.choices[0].generation if self.choices else None
        ran = first is not None and first.cached is not None and not first.ended_waiting
        prompt = len(self.prompt) if ran else 0
        payers = self.choices[:: self.request.n]  # the first choice of each prompt
        cached = sum(one.generation.cached_tokens for one in payers) if ran else 0
        completion = sum(len(one.generation.output) for one in self.choices)
        report = self.engine.options.cache_report
        value = shapes.usage(prompt, completion, cached if report else None)
        fault = self.plan.get("usage")
        if fault is not None and fault.text("mode", "zero") == "zero":
            value.update(prompt_tokens=0, completion_tokens=0, total_tokens=0)
        return value

    def _usage_missing(self) -> bool:
        fault = self.plan.get("usage")
        return fault is not None and fault.text("mode", "zero") == "missing"

    def _send_usage(self) -> None:
        if self.request.include_usage and not self._usage_missing():
            self.out.frame(self.last_writer().final_usage(self.usage()))

    def last_writer(self) -> shapes.ChunkWriter:
        """The writer of the choice that spoke last, whose id closes the stream."""
        if self.finished_choices:
            return self.finished_choices[-1].writer
        return shapes.ChunkWriter(self.rid, self.object_name, self.created, self.request.model)

    def _respond(self) -> None:
        failed = next((one.generation.error for one in self.choices if one.generation.error), None)
        if failed is not None:
            raise Refusal(503, failed, "503")
        if self.exchange.gone.is_set():
            self.engine.seen.disconnected += 1
            return
        first = self.choices[0].generation
        body = {
            "id": first.rid,
            "object": self.body_name,
            "created": self.created,
            "model": self.request.model,
            "choices": [self.choice_body(one) for one in self.choices],
            "usage": self.usage(),
            "metadata": shapes.weight_metadata(self.engine.weight_version, len(first.output)),
        }
        if self._usage_missing():
            del body["usage"]
        self.exchange.respond_json(200, body)

    def current_usage(self, choice: Choice) -> dict[str, Any] | None:
        """Usage so far, for a client that asked for it with every chunk."""
        if not self.request.continuous_usage:
            return None
        report = self.engine.options.cache_report
        cached = choice.generation.cached_tokens if report else None
        return shapes.usage(len(self.prompt), len(choice.generation.output), cached)
