"""One life of one engine of ours, top to bottom: spawn, load, warm up, serve, drain.

The supervisor decides whether another one follows. Whatever ends it - the engine, a drain, a
cancellation - nothing of the session is left when `run` returns, unless it was told to `leave` the
engine to the next inferd. One that an earlier inferd has left is taken over instead of spawned.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Final

from inferd import clock
from inferd.errors import InferdError, ProvisionError, ShuttingDown, StorageError, UpstreamError
from inferd.workers import engine, engine_output
from inferd.workers.adoption import resume
from inferd.workers.client import OK
from inferd.workers.engine_owner import LEFT, LET_GO, EngineOwner, lost
from inferd.workers.gpus import TooFewGpus
from inferd.workers.process import EngineProcess
from inferd.workers.spec import AttachedSpec, Side, WorkerSpec
from inferd.workers.states import STARTING, WorkerState, move
from inferd.workers.vigil import Vigil
from inferd.workers.vital_signs import Parts
from inferd.workers.warm_up import WarmUp, warm_up

PROBE_LOOK_S: Final = 0.1
PROBE_S_MAX: Final = 2.0
PROGRESS_LOOK_S_MAX: Final = 5.0
OUTPUT_LOOK_S: Final = 1.0
LAST_WORDS_S_MAX: Final = 1.0
"""An engine that fails a request because it is dying is gone within this time."""
LAST_LINES: Final = 5
"""Of a worker that is given up, shown with the reason."""


class Worker(EngineOwner):
    """An engine of ours. `run` once; another life is another Worker."""

    warm: WarmUp | None = None

    @property
    def side(self) -> Side:
        return self.spec.side

    @property
    def progress(self) -> str:
        return self._heard.text if self.state in STARTING else ""

    @property
    def last_lines(self) -> list[str]:
        return [line for line in self._heard.lines if line.strip()][-LAST_LINES:]

    def respec(self, spec: WorkerSpec | AttachedSpec) -> None:
        assert isinstance(spec, WorkerSpec)
        self.spec = spec
        if self.client.adapters is not None:
            self.client.adapters.want(spec.adapters)

    async def run(self) -> None:
        """Live once; returns in STOPPED or FAILED, with nothing of the engine left."""
        if self.draining:
            return
        ending = "stopped with inferd"
        try:
            ending = await self._begin()
        except (OSError, ProvisionError, StorageError) as error:
            if self.state is not WorkerState.SPAWNING:
                raise
            if isinstance(error, TooFewGpus):
                self.gpus_lacking = error.needed
            move(self, WorkerState.FAILED, f"the engine cannot be started: {error}")
        finally:
            if ending is not LEFT:
                self._key_file.unlink(missing_ok=True)
            if self.state not in {WorkerState.FAILED, WorkerState.STOPPED}:
                move(self, WorkerState.STOPPED, ending)
            self._part()
            self._output.note(f"{self.id} {self.state}: {self.reason}")

    async def _live(self, process: EngineProcess) -> str:
        """From LOADING until nothing is left to be served; how it ended, unless in FAILED."""
        async with asyncio.TaskGroup() as group:
            running = [self.client.run(), self._report_loads()]
            if self.client.adapters is not None:
                running.append(self.client.adapters.run())
            services = [group.create_task(service) for service in running]
            try:
                failure = await self._become_ready(process, group)
                if failure is None and self.side is Side.PREFILL:
                    failure = await self._find_bootstrap()
                if failure is None and not self.draining:
                    move(self, WorkerState.READY)
                    if self.loads is not None and self.on_loads is not None:
                        self.on_loads(self.loads)
                    failure = await self._serve(process)
                if failure is not None:
                    move(self, WorkerState.FAILED, failure)
            finally:
                if self.state is WorkerState.READY:  # cancelled: nobody may be sent here any more
                    move(self, WorkerState.DRAINING, "stopping with inferd")
                failed = self.state is WorkerState.FAILED
                self.client.close(lost() if failed else _stopping())
                for service in services:
                    service.cancel()
        return "drained" if self.state is WorkerState.DRAINING else LET_GO

    async def _become_ready(self, process: EngineProcess, group: asyncio.TaskGroup) -> str | None:
        """Why it failed; None when it is ready or was asked to end."""
        assert self._remembered is not None
        if self._earlier is not None and self._earlier.was_ready:
            failure, self.loads = await resume(self.client, self.spec.model)
            outcome = "adopted" if failure is None else "ended"
            self.metrics.earlier_engines[outcome].inc()
            return failure and f"the engine that an earlier inferd has left cannot serve: {failure}"
        move(self, WorkerState.LOADING)
        if (failure := await self._start(process, group)) is None and not self.draining:
            self._remember(replace(self._remembered, was_ready=True))
        return failure

    async def _find_bootstrap(self) -> str | None:
        """Where those that decode meet it; an earlier inferd may have started it."""
        try:
            status, body = await self.client.get(engine.SETTINGS_PATH, PROBE_S_MAX)
        except UpstreamError as error:
            return f"it does not tell its bootstrap port: {error.message}"
        self.client.bootstrap_port = engine.bootstrap_port(body) if status == OK else None
        return None if self.client.bootstrap_port else "it does not tell its bootstrap port"

    async def _start(self, process: EngineProcess, group: asyncio.TaskGroup) -> str | None:
        """LOADING and WARMING. Why it failed; None when it is warm or was asked to end."""
        start = group.create_task(self._load_and_warm_up(process))
        start.add_done_callback(lambda _: self._woken.set())
        while not (start.done() or self.draining or self._ended(process)):
            await self._woken.wait()
            self._woken.clear()
        start.cancel()
        if self.draining:
            return None
        return self._last_words(process) if self._ended(process) else start.result()

    async def _load_and_warm_up(self, process: EngineProcess) -> str | None:
        workers = self.spec.workers
        if failure := await self._load(process, workers.load_stall_s):
            return failure
        process.note_files()
        self._key_file.unlink(missing_ok=True)
        move(self, WorkerState.WARMING)
        try:
            self.warm = await warm_up(
                self.client, self.spec.model, workers.load_stall_s, self.spec.kind, self.side
            )
        except InferdError as error:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_S_MAX):
                    await process.wait()
            self._hear()
            known = engine_output.explain(self._heard.lines)
            return f"it failed its warm-up: {known or error.message}"
        self.observer.warmed(self, self.warm)
        return None

    async def _load(self, process: EngineProcess, stall_s: float) -> str | None:
        """Wait for the engine to be ready, for as long as it gets on."""
        look_s = min(stall_s / 5, PROGRESS_LOOK_S_MAX)
        look_at = clock.monotonic()
        while not await self.client.ready(PROBE_S_MAX):
            self._hear()
            now = clock.monotonic()
            if now >= look_at:
                self._heard.look(now, process.activity())
                process.note_files()
                look_at = now + look_s
            if self._heard.stalled_s(now) > stall_s:
                why = engine_output.explain(self._heard.lines)
                stalled = f"no progress for {stall_s:g} s while {self._heard.text}"
                return f"{stalled}: {why}" if why else stalled
            await asyncio.sleep(PROBE_LOOK_S)
        return None

    async def _serve(self, process: EngineProcess) -> str | None:
        """READY and DRAINING. Why it failed; None when it was asked to end and has nothing left."""
        parts = Parts(process.record.pid)
        vigil = Vigil(self, parts, lambda: self.spec.watchdog, self._node.expected)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(vigil.run())
            failure = await self._serve_watched(process, vigil)
            watching.cancel()
        if failure is not None and not self._ended(process):
            process.hurry()
        return failure

    async def _serve_watched(self, process: EngineProcess, vigil: Vigil) -> str | None:
        while not (self.draining or self._ended(process) or vigil.condemned):
            await self._sleep(OUTPUT_LOOK_S)
            if any(map(engine_output.tells_of_death, self._hear())):
                return engine_output.explain(self._heard.lines)
            if vigil.outgrown:
                self.drain(self.spec.workers.drain_s)
        if not (self._ended(process) or vigil.condemned):
            await self._finish_leases(lambda: self._ended(process) or bool(vigil.condemned))
        if self._ended(process):
            return self._last_words(process)
        return vigil.condemned or vigil.outgrown or None

    def _hear(self, *, last: bool = False) -> list[str]:
        lines = self._reader.read(last=last)
        self._heard.hear(clock.monotonic(), lines)
        return lines

    def _last_words(self, process: EngineProcess) -> str:
        self._hear(last=True)
        assert process.exit_status is not None
        return engine_output.explain_exit(process.exit_status, list(self._heard.lines))


def _stopping() -> UpstreamError:
    return ShuttingDown("The worker is being stopped.", retry_after_s=5)
