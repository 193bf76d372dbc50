"""The LoRA adapters of one worker: which it should have, which its engine holds, who uses them.

Owns both lists. The engine loads an adapter that it once knew again when a request names it, so no
request goes to it that does not hold its adapter here, and what is not wanted any more is refused
before it could be named. Loads and unloads come one at a time, from the worker's own service.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson

from inferd.errors import UnknownModel, UpstreamError, WorkerUnreachable
from inferd.workers import engine

if TYPE_CHECKING:
    from inferd.workers.client import WorkerClient
    from inferd.workers.spec import AdapterSpec

log = logging.getLogger(__name__)

CALL_S_MAX: Final = 120.0
"""A large adapter from a slow disk; an unload waits for the requests that still use it."""
RETRY_S: Final = 5.0
OK: Final = 200


class Adapters:
    """Of one worker. `use` is for requests; `run` is the service."""

    def __init__(self, client: WorkerClient, loaded_max: int | None) -> None:
        self._client = client
        self._loaded_max = loaded_max
        self._wanted: dict[str, AdapterSpec] = {}
        self._loaded: OrderedDict[str, None] = OrderedDict()
        """The least recently used first."""
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._failed: dict[str, str] = {}
        self._started = False
        self._woken = asyncio.Event()
        self.on_change: Callable[[frozenset[str]], None] | None = None
        """Told which the engine holds, whenever that changes."""
        self.on_event: Callable[[str], None] | None = None
        """Told of every `loaded`, `unloaded` and `failed`."""

    @property
    def loaded(self) -> frozenset[str]:
        """What the engine holds and may be asked for, by its own names."""
        return frozenset(key for key in self._loaded if key in self._wanted)

    def states(self) -> Mapping[str, str]:
        """Each wanted one by its public name: `loaded`, `not loaded`, or why it cannot be."""
        return {
            spec.name: "loaded" if key in self._loaded else self._failed.get(key, "not loaded")
            for key, spec in self._wanted.items()
        }

    def want(self, specs: Iterable[AdapterSpec]) -> None:
        """From now on exactly these may be used; the engine follows."""
        self._wanted = {spec.key: spec for spec in specs}
        self._failed.clear()
        for key in self._waiting.keys() - self._wanted.keys():
            self._end_waits(key, _gone())
        self._changed()

    def start(self) -> None:
        """The engine answers: what is wanted is loaded from now on."""
        self._started = True
        self._woken.set()

    @asynccontextmanager
    async def use(self, key: str) -> AsyncIterator[None]:
        """The engine holds the adapter as long as the scope lasts.

        Raises:
            UnknownModel: it is not wanted any more.
            WorkerUnreachable: the engine cannot load it.
        """
        if key not in self._wanted:
            raise _gone()
        self._held[key] += 1
        try:
            if key in self._loaded:
                self._loaded.move_to_end(key)
            else:
                await self._wait_for(key)
            yield
        finally:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]
                self._woken.set()

    async def run(self) -> None:
        """Service: keep the engine as wanted."""
        try:
            while not self._started:
                await self._woken.wait()
                self._woken.clear()
            await self._look()
            while True:
                self._woken.clear()
                if not await self._step():
                    await self._woken.wait()
        finally:
            for key in list(self._waiting):
                self._end_waits(key, WorkerUnreachable("The worker was lost."))

    async def _wait_for(self, key: str) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(waiter)
        self._woken.set()
        try:
            await waiter
        finally:
            if (waiters := self._waiting.get(key)) and waiter in waiters:
                waiters.remove(waiter)

    def _end_waits(self, key: str, error: Exception | None) -> None:
        for waiter in self._waiting.pop(key, ()):
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    async def _look(self) -> None:
        """An engine that ran before this gateway did may hold some."""
        try:
            status, body = await self._client.get(engine.MODELS_PATH, CALL_S_MAX)
        except UpstreamError:
            return
        if status == OK:
            self._loaded.update(dict.fromkeys(sorted(engine.adapter_names(body))))
            self._changed()

    async def _step(self) -> bool:
        """Do one thing that is to be done; False: there is none."""
        for key in self._loaded:
            if key not in self._wanted and not self._held[key]:
                return await self._unload(key)
        for key, waiters in self._waiting.items():
            if waiters and key in self._wanted:
                return await self._make_room(key) or await self._load(key)
        if self._has_room():
            for key in self._wanted:
                if key not in self._loaded and key not in self._failed:
                    return await self._load(key)
        return False

    def _has_room(self) -> bool:
        return self._loaded_max is None or len(self._loaded) < self._loaded_max

    async def _make_room(self, key: str) -> bool:
        """Whether something was unloaded for it, or has to be waited for."""
        if self._has_room() or key in self._loaded:
            return False
        for other in self._loaded:
            if not self._held[other]:
                return await self._unload(other)
        await self._woken.wait()
        return True

    async def _load(self, key: str) -> bool:
        spec = self._wanted[key]
        body = {"lora_name": key, "lora_path": str(spec.folder)}
        problem, held = await self._call(engine.LOAD_ADAPTER_PATH, body)
        if held is not None and held.get(key) == str(spec.folder):
            self._failed.pop(key, None)
            self._loaded[key] = None
            self._event("loaded", spec.name)
            self._changed()
            self._end_waits(key, None)
        else:
            self._failed[key] = problem
            self._event("failed", f"{spec.name}: {problem}")
            self._end_waits(key, WorkerUnreachable("The worker cannot load the adapter."))
        return True

    async def _unload(self, key: str) -> bool:
        del self._loaded[key]  # who comes meanwhile must wait until it is loaded again
        self._changed()
        problem, held = await self._call(engine.UNLOAD_ADAPTER_PATH, {"lora_name": key})
        if held is None or key in held:
            self._loaded[key] = None
            self._event("failed", f"unloading {key}: {problem}")
            self._changed()
            self._end_waits(key, None)
            await asyncio.sleep(RETRY_S)
            return True
        self._event("unloaded", key)
        return True

    async def _call(self, path: str, body: dict[str, Any]) -> tuple[str, dict[str, str] | None]:
        """Why it may have failed, and what the engine holds then if it tells."""
        try:
            status, answer = await self._client.post(path, body, CALL_S_MAX)
        except UpstreamError as error:
            return error.message, None
        problem = f"the engine answered with HTTP status {status}"
        try:
            told = orjson.loads(answer).get("error_message")
        except (ValueError, AttributeError):
            told = None
        return told or problem, engine.loaded_adapters(answer)

    def _changed(self) -> None:
        self._woken.set()
        if self.on_change is not None:
            self.on_change(self.loaded)

    def _event(self, event: str, what: str) -> None:
        level = logging.ERROR if event == "failed" else logging.INFO
        log.log(
            level,
            "adapter %s: %s",
            event,
            what,
            extra={"worker": self._client.worker_id},
        )
        if self.on_event is not None:
            self.on_event(event)


def _gone() -> UnknownModel:
    return UnknownModel("The model does not exist any more: it was removed.", param="model")
