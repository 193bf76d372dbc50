"""Measures a model on this machine: starts one engine for real, times it, stops it.

Owns that engine, its port, key and folder, all gone on return. What the figures lead to is in
`step_cost.py`. Prompts are of words drawn by chance, so that none of them is in the engine's cache
by accident; how many of their tokens were new is what the engine's usage says.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from inferd import clock
from inferd.capacity.step_cost import Measured, PrefillStep, fit
from inferd.errors import InferdError, ProvisionError
from inferd.inference import Endpoint, Usage
from inferd.provision import model_folder
from inferd.upstream.answer import usage_of
from inferd.workers import engine, engine_output
from inferd.workers.client import WorkerClient
from inferd.workers.load_progress import LoadProgress
from inferd.workers.output_log import LogReader, OutputLog
from inferd.workers.process import EngineProcess, spawn
from inferd.workers.spec import WorkerSpec

WORKER_ID: Final = "measured"
START_S_MAX: Final = 180.0
STALL_S_MAX: Final = 60.0
LOOK_S: Final = 0.2
ACTIVITY_LOOK_S: Final = 5.0
READY_S_MAX: Final = 2.0
ANSWER_S_MAX: Final = 90.0
LAST_WORDS_S_MAX: Final = 1.0
"""An engine that fails a request because it is dying is gone within this time."""
OUTPUT_BYTES_MAX: Final = 1_048_576

STREAMS: Final = 8
TRIES: Final = 2
"""The quicker one counts: what else runs on the machine only ever makes a step longer."""
DECODED: Final = (4, 20)
"""Two lengths of one answer: their difference in time is that of the steps between."""
FRESH: Final = (64, 128, 256, 512, 1_000)
SHORT: Final = 256
LONG: Final = 2_000
MORE: Final = 64
LONG_AFTER_S_MAX: Final = 15.0
"""A machine that needed longer for the short prompts is not kept busy with the long one."""

_WORDS: Final = (
    "time year people way day man thing woman life child world school state family student group"
    " country problem hand part place case week company system program question work number night"
    " point home water room mother area money story fact month lot right study book eye job word"
)

Report = Callable[[str], None]


async def measure(
    spec: WorkerSpec, environment: engine.Environment, rng: random.Random, report: Report
) -> Measured:
    """Start an engine for `spec`, time it for some 20 s, stop it; `report` is told what goes on.

    Raises:
        ProvisionError: the engine does not start, or fails, or a figure takes too long.
    """
    whole = spec.engine.model_copy(update={"chunked_prefill_tokens": spec.context_tokens_max})
    spec = replace(spec, engine=whole)  # a prompt is then one step, whatever its length
    if incomplete := model_folder.problems(spec.weights):
        raise ProvisionError(f"{incomplete[0]}: put the whole model there")
    with TemporaryDirectory(prefix="inferd-measure-") as folder:
        async with _engine(spec, environment, Path(folder), report) as (process, client, heard):
            try:
                return await _figures(_Timer(client, spec.model, rng), report)
            except InferdError as error:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORDS_S_MAX):
                        await process.wait()
                reason = _last_words(process, heard) or error.message
                raise ProvisionError(_not_measured(reason)) from error


def _not_measured(reason: str) -> str:
    return f"{reason.rstrip('.')}. See `inferd engine doctor`"


@dataclass(slots=True)
class _Heard:
    """What the engine has printed."""

    reader: LogReader
    load: LoadProgress

    def hear(self, *, last: bool = False) -> None:
        self.load.hear(clock.monotonic(), self.reader.read(last=last))


@asynccontextmanager
async def _engine(
    spec: WorkerSpec, environment: engine.Environment, folder: Path, report: Report
) -> AsyncIterator[tuple[EngineProcess, WorkerClient, _Heard]]:
    """A ready engine; its session is empty when the scope is left."""
    port, api_key = engine.free_port(), secrets.token_hex(32)
    key_file, output = folder / "engine.yaml", OutputLog(folder / "output.log", OUTPUT_BYTES_MAX)
    engine.write_key_file(key_file, api_key)
    program = engine.program(spec, environment, port=port, key_file=key_file, folder=folder)
    heard = _Heard(LogReader(output.path, offset=0), LoadProgress(clock.monotonic()))
    client = WorkerClient(WORKER_ID, f"http://{engine.HOST}:{port}", api_key)
    try:
        with output.opened() as descriptor:
            # Nobody waits for its answers: it is killed without being asked first.
            process = spawn(
                program,
                output=descriptor,
                worker_id=WORKER_ID,
                port=port,
                spec_hash=spec.spec_hash,
                stop_grace_s=0.0,
            )
    except OSError as error:
        raise ProvisionError(_not_measured(f"the engine cannot be started ({error})")) from error
    try:
        async with process, asyncio.TaskGroup() as group:
            services = [group.create_task(service) for service in (client.run(), output.run())]
            try:
                await _started(process, client, heard, report)
                yield process, client, heard
            finally:
                for service in services:
                    service.cancel()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _started(
    process: EngineProcess, client: WorkerClient, heard: _Heard, report: Report
) -> None:
    """Wait until it is ready, for as long as it gets on."""
    began = looked = clock.monotonic()
    while not await client.ready(READY_S_MAX):
        now = clock.monotonic()
        heard.hear()
        report(f"starting the engine: {heard.load.phase} ({now - began:.0f} s)")
        if now - looked >= ACTIVITY_LOOK_S:
            heard.load.look(now, process.activity())
            looked = now
        if reason := _last_words(process, heard):
            raise ProvisionError(_not_measured(reason))
        if heard.load.stalled_s(now) > STALL_S_MAX or now - began > START_S_MAX:
            waited = f"the engine was not ready after {now - began:.0f} s ({heard.load.text})"
            raise ProvisionError(_not_measured(waited))
        await asyncio.sleep(LOOK_S)


def _last_words(process: EngineProcess, heard: _Heard) -> str | None:
    """Why it has ended, if it has."""
    if process.exit_status is None:
        return None
    heard.hear(last=True)
    return engine_output.explain_exit(process.exit_status, list(heard.load.lines))


async def _figures(timer: _Timer, report: Report) -> Measured:
    report("measuring: first request")
    await timer.prefill(MORE)
    began = clock.monotonic()
    report("measuring: decode, 1 stream")
    decode_1_s = min([await timer.decode(1) for _ in range(TRIES)])
    report(f"measuring: decode, {STREAMS} streams")
    decode_8_s = min([await timer.decode(STREAMS) for _ in range(TRIES)])
    steps: list[PrefillStep] = []
    for tokens in FRESH:
        report(f"measuring: prefill, {tokens:,} tokens")
        tries = TRIES if tokens <= SHORT else 1
        seen = [await timer.prefill(tokens) for _ in range(tries)]
        steps.append(min(seen, key=lambda step: step.seconds / step.new_tokens))
    whole = steps[-1]
    report(f"measuring: prefill, {MORE} tokens after {FRESH[-1]:,}")
    steps.append(await timer.prefill_more(MORE))
    if clock.monotonic() - began <= LONG_AFTER_S_MAX:
        report(f"measuring: prefill, {LONG:,} tokens")
        steps.append(await timer.prefill(LONG))
        steps.append(await timer.prefill_more(MORE))
    decode_8_s = max(decode_1_s, decode_8_s)
    return Measured(decode_1_s, decode_8_s, fit(steps), whole.new_tokens / whole.seconds)


class _Timer:
    """Asks one engine and times its answers."""

    def __init__(self, client: WorkerClient, model: str, rng: random.Random) -> None:
        self._client = client
        self._model = model
        self._rng = rng
        self._prompt = ""

    async def prefill(self, tokens: int) -> PrefillStep:
        """A prompt of about so many tokens that the engine has not seen."""
        self._prompt = self._words(tokens)
        return await self._one_token()

    async def prefill_more(self, tokens: int) -> PrefillStep:
        """The last prompt and about so many tokens behind it."""
        self._prompt += " " + self._words(tokens)
        return await self._one_token()

    async def decode(self, streams: int) -> float:
        """Seconds of one step that gives each of so many answers a token."""
        short_s, long_s = [await self._side_by_side(streams, tokens) for tokens in DECODED]
        steps = DECODED[1] - DECODED[0]
        return max(long_s - short_s, long_s / DECODED[1] / 2) / steps

    async def _side_by_side(self, streams: int, tokens: int) -> float:
        began = clock.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(streams):
                    group.create_task(self._ask(self._words(MORE // 2), tokens))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return clock.monotonic() - began

    async def _one_token(self) -> PrefillStep:
        began = clock.monotonic()
        usage = await self._ask(self._prompt, 1)
        new_tokens = max(1, usage.prompt_tokens - usage.cached_tokens)
        return PrefillStep(new_tokens, usage.prompt_tokens, clock.monotonic() - began)

    async def _ask(self, prompt: str, tokens: int) -> Usage:
        payload: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        answer = await self._client.complete(Endpoint.CHAT, payload, ANSWER_S_MAX)
        return usage_of(answer["usage"])

    def _words(self, count: int) -> str:
        return " ".join(self._rng.choices(_WORDS.split(), k=count))
