"""A worker that someone else runs: probed, used and shown, never started nor killed.

It may be any server that speaks SGLang's HTTP, or a plain OpenAI-compatible one; what the latter
lacks (load reports, abort by id) stays unknown. It is LOADING until it first answers as it should,
READY while it does, and FAILED with the reason when it does not, until it does again.
"""

from __future__ import annotations

import asyncio
from typing import Final

import orjson

from inferd import clock
from inferd.clock import utc_now_us
from inferd.errors import ShuttingDown, UpstreamError, WorkerTimeout, WorkerUnreachable
from inferd.inference import ModelKind
from inferd.workers import engine
from inferd.workers.base import Node, WorkerBase
from inferd.workers.client import OK, WorkerClient
from inferd.workers.spec import AttachedSpec, WorkerSpec
from inferd.workers.states import WorkerState, move
from inferd.workers.vigil import Vigil

PROBE_LOOK_S: Final = 2.0
PROBE_S_MAX: Final = 5.0
SILENT_PROBES_MAX: Final = 3
"""A worker in a long prefill may miss a probe; one that refuses connections is lost at once."""
DISTRUST_S: Final = 10.0
DISTRUST_S_MAX: Final = 300.0
"""One that hung is not used for this long, twice as long each time: probes prove nothing."""
TRUSTED_S: Final = 60.0
"""A worker that served for so long is one that never hung."""
UNKNOWN_URL: Final = frozenset({404, 405})
KEY_REFUSED: Final = frozenset({401, 403})
NOT_NOW: Final = frozenset({408, 429})
SERVER_ERRORS: Final = range(500, 600)


class _Unusable(UpstreamError):
    """It answers, but not as it must: waiting alone will not help."""


class AttachedWorker(WorkerBase):
    """A worker of somebody else's. `run` ends only when it is asked to drain."""

    def __init__(
        self,
        worker_id: str,
        pool: str,
        spec: AttachedSpec,
        node: Node,
        previous: WorkerBase | None = None,
    ) -> None:
        client = WorkerClient(
            worker_id, spec.url, spec.api_key, speaks_sglang=False, model=spec.model
        )
        super().__init__(
            worker_id,
            pool,
            node,
            client=client,
            spec_hash=spec.spec_hash,
            inflight_max=spec.inflight_max,
            previous=previous,
        )
        self.spec = spec
        self._problem = "not asked yet"
        self.silent = 0
        """How many probes in a row it has let pass while it was READY."""
        self._has_ready = True
        self._distrust_s = 0.0
        self._trusted_from = 0.0

    @property
    def progress(self) -> str:
        if self.state in {WorkerState.LOADING, WorkerState.FAILED}:
            return f"waiting for {self.spec.url}: {self._problem}"
        return ""

    async def run(self) -> None:
        """Probe until asked to drain; returns in STOPPED."""
        if self.draining:
            return
        move(self, WorkerState.LOADING)
        try:
            async with asyncio.TaskGroup() as group:
                services = [
                    group.create_task(service)
                    for service in (self.client.run(), self._report_loads())
                ]
                try:
                    await self._serve()
                finally:
                    self.client.close(ShuttingDown("The worker is being let go.", retry_after_s=5))
                    for service in services:
                        service.cancel()
        finally:
            if self.state is WorkerState.READY:  # cancelled in the middle of its work
                move(self, WorkerState.DRAINING, "stopping with inferd")
            move(self, WorkerState.STOPPED, "let go")

    def respec(self, spec: WorkerSpec | AttachedSpec) -> None:
        assert isinstance(spec, AttachedSpec)
        self.spec = spec

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            vigil: Vigil | None = None
            watching: asyncio.Task[None] | None = None
            while not self.draining:
                await self._probe()
                serves = self.state is WorkerState.READY
                if watching is not None and not serves:
                    watching.cancel()
                    vigil = watching = None
                elif vigil is None and serves and self.client.speaks_sglang:
                    vigil = Vigil(self, None, lambda: self.spec.watchdog, self._node.expected)
                    watching = group.create_task(vigil.run())
                await self._sleep(PROBE_LOOK_S)
                if vigil is not None and vigil.condemned and self.state is WorkerState.READY:
                    self._distrust(vigil.condemned)
            if watching is not None:
                watching.cancel()
        if self.state is WorkerState.READY:
            await self._finish_leases(lambda: False)

    async def _probe(self) -> None:
        """Ask whether it serves, and move to where the answer leads."""
        try:
            try:
                await self._check()
            except WorkerUnreachable:
                await self._check()  # an idle connection may just have been closed: a new one
        except UpstreamError as error:
            self._missed(error)
        else:
            self.silent = 0
            if self.state is WorkerState.FAILED:
                move(self, WorkerState.LOADING, "it answers again")
            if self.state is WorkerState.LOADING:
                move(self, WorkerState.READY)

    def _distrust(self, reason: str) -> None:
        """It hangs: who waits is told, and nobody is sent there until it has proved itself."""
        now = clock.monotonic()
        if now - self.since >= TRUSTED_S:
            self._distrust_s = 0.0
        self._distrust_s = min(max(2 * self._distrust_s, DISTRUST_S), DISTRUST_S_MAX)
        self._trusted_from = now + self._distrust_s
        move(self, WorkerState.FAILED, reason)
        self.client.fail_all(WorkerUnreachable("The worker was lost."))

    def _missed(self, error: UpstreamError) -> None:
        self._problem = error.message
        if self.state is WorkerState.LOADING:
            if isinstance(error, _Unusable):
                move(self, WorkerState.FAILED, error.message)
        elif self.state is WorkerState.READY:
            self.silent += 1
            busy = self.client.speaks_sglang and self.client.debt().owed > 0
            if isinstance(error, WorkerTimeout) and (busy or self.silent < SILENT_PROBES_MAX):
                return  # whether a busy one hangs is for the watchdog to say
            move(self, WorkerState.FAILED, error.message)
            if isinstance(error, WorkerUnreachable):
                self.client.fail_all(WorkerUnreachable("The worker was lost."))

    async def _check(self) -> None:
        """Does it serve? One that is to become READY is looked at more closely.

        Raises:
            UpstreamError: it does not, and why.
        """
        closely = self.state is not WorkerState.READY
        if self.state is WorkerState.FAILED and self._distrust_s:
            await self._check_health()
        if self._has_ready or closely:
            status, _ = await self.client.get(engine.READY_PATH, PROBE_S_MAX)
            self._has_ready = status not in UNKNOWN_URL
            if self._has_ready and status != OK:
                raise UpstreamError(f"it is not ready (GET {engine.READY_PATH} gave {status})")
        if not self._has_ready or closely:
            await self._check_models()
        if closely:
            self.client.speaks_sglang = await self._reports_loads()
            if self.client.speaks_sglang:
                await self._check_kind()
                await self._read_settings()
                await self._begin_counting()

    async def _check_health(self) -> None:
        """One that hung must wait, and then make a token."""
        wait_s = self._trusted_from - clock.monotonic()
        if wait_s > 0:
            raise UpstreamError(f"it hung, and is not asked for another {wait_s:.0f} s")
        status, _ = await self.client.get(engine.HEALTH_PATH, self.spec.watchdog.unanswered_s)
        if status != OK:
            raise UpstreamError(f"it hung, and generates nothing (GET /health gave {status})")

    async def _reports_loads(self) -> bool:
        """Whether it has SGLang's load reports, and so its aborts; False only if it says so.

        Raises:
            UpstreamError: it does not say now. Taken for a plain server it would stay one.
        """
        status, body = await self.client.get(engine.LOADS_PATH, PROBE_S_MAX)
        if status in NOT_NOW or status in SERVER_ERRORS:
            raise UpstreamError(f"GET {engine.LOADS_PATH} gave {status}")
        return status == OK and engine.parse_loads(body) is not None

    async def _check_kind(self) -> None:
        """An engine that embeds dies of a chat request: one of the wrong kind is never used."""
        status, body = await self.client.get(engine.INFO_PATH, PROBE_S_MAX)
        writes = engine.generates(body) if status == OK else None
        if writes is not None and writes is not (self.spec.kind is ModelKind.CHAT):
            kind = ModelKind.CHAT if writes else ModelKind.EMBEDDING
            raise _Unusable(
                f"its kind is {kind}, not {self.spec.kind}: correct `url`, or the model's `kind`"
            )

    async def _read_settings(self) -> None:
        """How many tokens an event may have: what is relayed is counted where no usage comes."""
        status, body = await self.client.get(engine.SETTINGS_PATH, PROBE_S_MAX)
        self.client.tokens_per_event = engine.tokens_per_event(body) if status == OK else 1

    async def _begin_counting(self) -> None:
        """Its counters hold what others had of it: the ledger is held against what comes now.

        One that was lost for a while is counted on, unless it was started again meanwhile.
        """
        status, body = await self.client.get(engine.METRICS_PATH, PROBE_S_MAX)
        if status != OK:
            return
        try:
            now = engine.parse_counters(body.decode("utf-8", "replace"))
        except ValueError:
            return
        restarted = now.prompt_tokens < self.counted_from.prompt_tokens
        if self.counted_since_us is None or restarted:
            self.counted_from, self.counted_since_us = now, utc_now_us()

    async def _check_models(self) -> None:
        status, body = await self.client.get(engine.MODELS_PATH, PROBE_S_MAX)
        if status in KEY_REFUSED:
            raise _Unusable(f"it refuses the key ({status}): correct the variable of `key_env`")
        if status != OK:
            raise UpstreamError(f"GET {engine.MODELS_PATH} gave {status}")
        try:
            names = [str(model["id"]) for model in orjson.loads(body)["data"]]
        except (ValueError, TypeError, KeyError) as error:
            raise _Unusable(
                f"GET {engine.MODELS_PATH} gave no list of models: correct `url`"
            ) from error
        if self.spec.model not in names:
            # SGLang answers for any name with what it has: for another model that would be a lie.
            served = ", ".join(names[:5]) or "no model"
            raise _Unusable(
                f"it serves {served}, not {self.spec.model}: correct `url`, or set `model`"
            )
