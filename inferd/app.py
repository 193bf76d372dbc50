"""The life of the process: opens what it needs, runs one task group, shuts down in order.

Owns the order of start and shutdown; `node.py` owns what is started. A service that dies takes
the process with it: a gateway whose supervisor or writer is gone must not go on answering.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry

from inferd import tracing
from inferd.api.admin_auth import load_or_create_admin_key
from inferd.api.http_protocol import ConnectionLimits
from inferd.api.listener import Listener
from inferd.clock import monotonic
from inferd.config.address import Address, parse_address
from inferd.config.load import LoadedConfig
from inferd.config.schema import Server
from inferd.errors import ConfigError, ShuttingDown
from inferd.metrics import Metrics
from inferd.node import Node
from inferd.provision.wanted_engine import engine_environment
from inferd.quota.keys import KeyIndex
from inferd.storage import quarantine, workers
from inferd.storage.database import Database, Flush
from inferd.storage.files import store_owner
from inferd.storage.lock import SERVE, hold
from inferd.storage.object_store import ObjectStore, open_store
from inferd.workers.base import WorkerBase
from inferd.workers.records import Records
from inferd.workers.states import WorkerState

LAST_WORDS_S: Final = 5.0
"""For error events and closing connections after the grace is over."""

DESCRIPTORS_BESIDE: Final = 256
"""For what is no stream: the database, logs, files under way, spare connections to workers."""

SIGNAL_DONE, SIGNAL_FAILED = 200, 409
"""How a signal's action ended, in the audit log as if it had been asked by HTTP."""

log = logging.getLogger(__name__)


class Spectator(Protocol):
    """Who watches the process from the command line. Called synchronously; must not block."""

    def listening(self, public: Address, admin: Address) -> None: ...

    def worker_changed(
        self, worker: WorkerBase, before: WorkerState, after: WorkerState
    ) -> None: ...

    def stopping(self) -> None: ...


class ServiceDiedError(Exception):
    """A service ended while nobody had asked it to."""


class App:
    """One inferd. `run` once."""

    def __init__(self, loaded: LoadedConfig, spectator: Spectator | None = None) -> None:
        self._loaded = loaded
        self.stopping = False
        self._spectator = spectator
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._reload_asked = asyncio.Event()
        self._grace: asyncio.Timeout | None = None
        """While running requests may finish."""
        self.metrics = Metrics(CollectorRegistry())
        self.node: Node
        """From the moment on at which `run` has found all it needs to start."""

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then shut down in order.

        Raises:
            StartError, StorageError, ConfigError, ProvisionError: it cannot start here.
            BaseExceptionGroup: a service died; the log names it.
        """
        loaded = self._loaded
        server = loaded.config.server
        state_dir = loaded.resolve(server.state_dir)
        environment = engine_environment(loaded)
        allow_descriptors(server.connections_max)
        async with AsyncExitStack() as stack:
            lock = await stack.enter_async_context(hold(state_dir, SERVE))
            self._public = Listener(parse_address(server.listen), "server.listen")
            stack.callback(self._public.close)
            self._admin = Listener(parse_address(server.admin_listen), "server.admin_listen")
            stack.callback(self._admin.close)
            admin_key = load_or_create_admin_key(state_dir)
            db = await stack.enter_async_context(
                Database.open(state_dir / "inferd.db", self._flushed)
            )
            self.node = Node(
                loaded,
                environment=environment,
                db=db,
                objects=ObjectStore(
                    open_store(loaded.config.files, loaded.resolve, os.environ),
                    await store_owner(db),
                    lambda operation: self.metrics.file_store_errors[operation].inc(),
                ),
                keys=await KeyIndex.load(db, [team.name for team in loaded.config.teams]),
                metrics=self.metrics,
                records=Records(db, await workers.load(db), await quarantine.load(db)),
                watch=self._spectator.worker_changed if self._spectator else None,
            )
            traced = loaded.config.tracing
            spans = tracing.opened(traced.endpoint, traced.sample_ratio)
            self.node.ledger.tracing = await stack.enter_async_context(spans)
            await self.node.restore()
            lock.publish(str(self._admin.address))
            await self._serve(server, admin_key)

    async def _serve(self, server: Server, admin_key: str) -> None:
        node = self.node
        limits = ConnectionLimits(server.connections_max, server.body_timeout_s, server.stall_s)
        self._take_signals()
        try:
            async with asyncio.TaskGroup() as services:
                start = partial(self._start, services)
                writer = start("database writer", node.db.run())
                background = [start(name, service) for name, service in node.background()]
                background.append(start("reloader", self._reload_on_signal()))
                supervisor = start("worker supervisor", node.supervisor.run())
                teams = start("public server", self._public.run(node.public_app(), limits))
                admins = start("admin server", self._admin.run(node.admin_app(admin_key), limits))
                if self._spectator is not None:
                    self._spectator.listening(self._public.address, self._admin.address)
                _freeze()
                await self._stop.wait()
                await self._finish_requests(teams)
                await node.batches.cut()
                node.supervisor.stop(0.0, leave=node.config.server.keep_workers)
                await supervisor
                self._admin.stop()
                await _ended(admins, self._admin)
                for service in background:
                    service.cancel()
                node.save()
                await node.db.flush()
                writer.cancel()
        finally:
            self._give_signals_back()

    def _start(
        self, services: asyncio.TaskGroup, name: str, service: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None]:
        async def watched() -> None:
            try:
                await service
            except Exception:
                log.critical("the %s died; inferd stops", name, exc_info=True)
                raise
            if not self.stopping:
                raise ServiceDiedError(f"the {name} ended although nobody asked it to")

        return services.create_task(watched(), name=name)

    async def _finish_requests(self, public: asyncio.Task[None]) -> None:
        """No new requests; running ones may finish within the grace, the rest is told.

        First the listener stays open for `unready_s`: whoever balances load over several nodes
        needs a moment to see that this one is not ready any more. A second signal ends that too.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.node.config.server.unready_s):
                await self._hurry.wait()
        self._public.stop()
        grace_s = self.node.config.server.shutdown_grace_s
        try:
            # The server's end, not dispatch's: a request may still be on its way to there.
            async with asyncio.timeout(grace_s) as self._grace:
                await asyncio.wait([public])
        except TimeoutError:
            self._cut_requests()
        finally:
            self._grace = None
        await _ended(public, self._public)

    def _cut_requests(self) -> None:
        left = self.node.dispatch.in_flight
        log.warning("the grace is over: %d requests end with an error", left)
        self.node.dispatch.close(ShuttingDown("inferd is shutting down.", retry_after_s=10))

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload_asked.set)

    def _give_signals_back(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)

    def stop(self) -> None:
        """What SIGTERM and SIGINT do: the first call drains, the second waits no longer."""
        if self.stopping:
            self._hurry.set()
            self.node.supervisor.hurry()
            if self._grace is not None and not self._grace.expired():
                self._grace.reschedule(monotonic())
            return
        self.stopping = True
        self.node.stopping = True
        self.node.batches.stop()
        log.info("stopping", extra={"in_flight": self.node.dispatch.in_flight})
        if self._spectator is not None:
            self._spectator.stopping()
        self._stop.set()

    async def _reload_on_signal(self) -> None:
        """SIGHUP: many in a row are one reload."""
        while True:
            await self._reload_asked.wait()
            self._reload_asked.clear()
            status = SIGNAL_FAILED
            with contextlib.suppress(ConfigError):  # logged with its problems; what runs goes on
                await self.node.reload()
                status = SIGNAL_DONE
            self.node.acted("SIGHUP", status)

    def _flushed(self, flush: Flush) -> None:
        self.metrics.writer_batch_rows.observe(flush.written)
        self.metrics.writer_rows_lost.inc(flush.lost)


async def _ended(server: asyncio.Task[None], listener: Listener) -> None:
    """Until a stopped server has closed its last connection, which must not take long any more."""
    try:
        async with asyncio.timeout(LAST_WORDS_S):
            await asyncio.wait([server])
    except TimeoutError:
        listener.force()
        await asyncio.wait([server])


def allow_descriptors(connections_max: int) -> None:
    """As many as the system lets this process have: each stream takes two, and shells give 1024.

    Warns if these are too few for so many connections.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    streams = (hard - DESCRIPTORS_BESIDE) // 2
    if hard != resource.RLIM_INFINITY and streams < connections_max:
        log.warning(
            "the system lets this process open %d files, enough for %d streams at once, and"
            " server.connections_max is %d. Raise the hard limit (LimitNOFILE= of the systemd unit,"
            " ulimit -Hn) or lower connections_max",
            hard,
            max(streams, 0),
            connections_max,
            extra={"open_files_max": hard, "connections_max": connections_max},
        )


def _freeze() -> None:
    """What lives as long as the process is not looked at again by the garbage collector."""
    gc.collect()
    gc.freeze()
