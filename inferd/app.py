"""The composition root: builds every owner, connects their callbacks, runs one task group.

Owns the current config and the order of start and shutdown. A service that dies takes the process
with it: a gateway whose supervisor or writer is gone must not go on answering.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry

from inferd import logs
from inferd.api.access import Access
from inferd.api.admin import AdminApi
from inferd.api.admin_auth import load_or_create_admin_key
from inferd.api.http_protocol import ConnectionLimits
from inferd.api.inference_endpoint import InferenceEndpoint
from inferd.api.key_admin import KeyAdmin
from inferd.api.listener import Listener
from inferd.api.models import Models
from inferd.api.node_admin import NodeAdmin
from inferd.api.node_routes import NodeApi
from inferd.api.operations import OPERATIONS
from inferd.api.probes import Probes
from inferd.api.routes import admin_app, public_app
from inferd.clock import monotonic, utc_now_us
from inferd.config.address import Address, parse_address
from inferd.config.load import LoadedConfig, load_config
from inferd.config.reload import Change, TeamRemoved, diff, needing_restart
from inferd.config.schema import Config, Targets
from inferd.dispatch import Dispatch
from inferd.errors import ConfigError, ProvisionError, ShuttingDown
from inferd.fleet import Fleet
from inferd.metrics import Metrics
from inferd.provision.check_files import check_files
from inferd.provision.environment import EngineEnvironment
from inferd.quota.buckets import Buckets
from inferd.quota.estimate import Estimator
from inferd.quota.keys import KeyIndex
from inferd.routing.pools import Pools
from inferd.settlement import Ledger
from inferd.storage import balances
from inferd.storage.database import Database, Flush
from inferd.storage.lock import SERVE, hold
from inferd.storage.usage import record
from inferd.workers.base import WorkerBase
from inferd.workers.spec import pools_from_config
from inferd.workers.states import WorkerState
from inferd.workers.supervisor import Supervisor

LAST_WORDS_S: Final = 5.0
"""For error events and closing connections after the grace is over."""
LAG_LOOK_S: Final = 0.5
BALANCES_SAVED_S: Final = 10.0
"""What teams spent after the last save is forgotten by a crash, not by an orderly end."""

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
        self.loaded = loaded
        self.started_us = utc_now_us()
        self.stopping = False
        self._spectator = spectator
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._reload_asked = asyncio.Event()
        self._grace: asyncio.Timeout | None = None
        """While running requests may finish."""
        self._rng = random.Random()
        self.metrics = Metrics(CollectorRegistry())

    @property
    def config(self) -> Config:
        return self.loaded.config

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then shut down in order.

        Raises:
            StartError, StorageError, ConfigError, ProvisionError: it cannot start here.
            BaseExceptionGroup: a service died; the log names it.
        """
        server = self.config.server
        state_dir = self.loaded.resolve(server.state_dir)
        environment = self._check_engine()
        async with AsyncExitStack() as stack:
            lock = await stack.enter_async_context(hold(state_dir, SERVE))
            self._public = Listener(parse_address(server.listen), "server.listen")
            stack.callback(self._public.close)
            self._admin = Listener(parse_address(server.admin_listen), "server.admin_listen")
            stack.callback(self._admin.close)
            admin_key = load_or_create_admin_key(state_dir)
            self.db = await stack.enter_async_context(
                Database.open(state_dir / "inferd.db", self._flushed)
            )
            self.keys = await KeyIndex.load(self.db, [team.name for team in self.config.teams])
            self._build(environment)
            self.buckets.restore(await balances.load(self.db, utc_now_us()), monotonic())
            lock.publish(str(self._admin.address))
            await self._serve(admin_key)

    async def reload(self) -> list[Change]:
        """Apply the file as it is now, or nothing of it.

        Raises:
            ConfigError: the file is wrong, or one of its changes needs a restart.
        """
        try:
            # Model folders may lie on a slow disk: they are looked at off the loop.
            loaded = await asyncio.to_thread(self._read_again)
            changes = self._changes_to(loaded)
        except ConfigError as error:
            self.metrics.config_reloads["refused"].inc()
            log.error("reload refused, nothing was changed: %s", error.message)  # noqa: TRY400 - theirs
            raise
        self.loaded = loaded
        config = loaded.config
        logs.set_level(config.logs.level)
        self.fleet.apply(config.models)
        self.pools.update(config.models)
        self.access.update(config.teams)
        self.buckets.update(config.teams, monotonic())
        self.keys.set_teams(team.name for team in config.teams)
        for change in changes:
            if isinstance(change, TeamRemoved):
                self.metrics.forget_team(change.team.name)
        self.supervisor.apply(pools_from_config(loaded))
        self.metrics.config_reloads["applied"].inc()
        log.info("reload applied", extra={"changes": [type(change).__name__ for change in changes]})
        return changes

    def _read_again(self) -> LoadedConfig:
        loaded = load_config(self.loaded.path)
        if problems := check_files(loaded):
            raise ConfigError(problems)
        return loaded

    def _changes_to(self, loaded: LoadedConfig) -> list[Change]:
        """What differs from the present config, which may have changed since the file was read."""
        if self.stopping:
            raise ConfigError(["inferd is stopping: the file counts from its next start on"])
        changes = diff(self.config, loaded.config)
        if refused := [str(change) for change in needing_restart(changes)]:
            raise ConfigError(refused)
        return changes

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether requests are taken here, and the state of each pool."""
        pools = {pool: self.fleet.pool_state(pool) for pool in self.pools.ids}
        ready = self.fleet.ready and not self.stopping
        status = "stopping" if self.stopping else "ready" if ready else "no worker is ready"
        return ready, {"status": status, "pools": pools}

    def _check_engine(self) -> EngineEnvironment:
        """The engine's environment; what it lacks is an error only if a worker is to run in it."""
        environment = EngineEnvironment(self.loaded.resolve(self.config.engine.environment))
        versions = [version for model in self.config.models for version in model.versions]
        if any(version.weights and version.workers.count for version in versions):
            if problems := environment.problems(deep=False):
                raise ProvisionError("\n".join(problems))
            if problems := check_files(self.loaded):
                raise ConfigError(problems)
        return environment

    def _build(self, environment: EngineEnvironment) -> None:
        """Every owner, in the order in which they know each other."""
        config = self.config
        post = partial(record, self.db)
        self.pools = Pools(config.models)
        self.access = Access(self.keys, self.pools, config.teams)
        self.buckets = Buckets(config.teams, monotonic())
        self.estimator = Estimator()
        self.fleet = Fleet(metrics=self.metrics, record=post, rng=self._rng)
        self.fleet.apply(config.models)
        self.fleet.watch = self._spectator.worker_changed if self._spectator else None
        self.ledger = Ledger(
            buckets=self.buckets,
            estimator=self.estimator,
            metrics=self.metrics,
            targets_of=self._targets_of,
            record=post,
        )
        self.dispatch = Dispatch(
            ledger=self.ledger,
            schedulers=self.fleet.schedulers,
            clients=self.fleet.clients,
            weight_of=self.access.weight,
        )
        self.supervisor = Supervisor(
            self.fleet,
            metrics=self.metrics,
            environment=environment,
            folder=self.loaded.resolve(config.server.state_dir) / "workers",
            leases_of=self.fleet.leases_of,
            rng=self._rng,
        )
        self.supervisor.apply(pools_from_config(self.loaded))

    async def _serve(self, admin_key: str) -> None:
        probes = Probes(self.readiness, self._exposition)
        count = self.metrics.http_request
        endpoints = [
            InferenceEndpoint(
                operation,
                access=self.access,
                dispatch=self.dispatch,
                buckets=self.buckets,
                estimator=self.estimator,
                server=self.config.server,
            )
            for operation in OPERATIONS
        ]
        models = Models(self.access, self.fleet.pool_state, self.started_us // 1_000_000)
        public = public_app(endpoints, models, probes, count, self.config.server.cors_origins)
        admin_api = AdminApi(KeyAdmin(self.keys, lambda: self.config))
        admin = admin_app(admin_api, NodeApi(NodeAdmin(self)), probes, admin_key, count)
        server = self.config.server
        limits = ConnectionLimits(server.connections_max, server.body_timeout_s, server.stall_s)
        self._take_signals()
        try:
            async with asyncio.TaskGroup() as services:
                start = partial(self._start, services)
                writer = start("database writer", self.db.run())
                lag = start("loop lag meter", self._measure_lag())
                keeper = start("balance keeper", self._keep_balances())
                reloads = start("reloader", self._reload_on_signal())
                workers = start("worker supervisor", self.supervisor.run())
                teams = start("public server", self._public.run(public, limits))
                admins = start("admin server", self._admin.run(admin, limits))
                if self._spectator is not None:
                    self._spectator.listening(self._public.address, self._admin.address)
                _freeze()
                await self._stop.wait()
                await self._finish_requests(teams)
                self.supervisor.stop(0.0)
                await workers
                self._admin.stop()
                await _ended(admins, self._admin)
                lag.cancel()
                reloads.cancel()
                keeper.cancel()
                self._save_balances()
                await self.db.flush()
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
            async with asyncio.timeout(self.config.server.unready_s):
                await self._hurry.wait()
        self._public.stop()
        grace_s = self.config.server.shutdown_grace_s
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
        left = self.dispatch.in_flight
        log.warning("the grace is over: %d requests end with an error", left)
        self.dispatch.close(ShuttingDown("inferd is shutting down.", retry_after_s=10))

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
            if self._grace is not None:
                self._grace.reschedule(monotonic())
            return
        self.stopping = True
        log.info("stopping", extra={"in_flight": self.dispatch.in_flight})
        if self._spectator is not None:
            self._spectator.stopping()
        self._stop.set()

    async def _reload_on_signal(self) -> None:
        """SIGHUP: many in a row are one reload."""
        while True:
            await self._reload_asked.wait()
            self._reload_asked.clear()
            with contextlib.suppress(ConfigError):  # logged with its problems; what runs goes on
                await self.reload()

    async def _keep_balances(self) -> None:
        while True:
            await asyncio.sleep(BALANCES_SAVED_S)
            self._save_balances()

    def _save_balances(self) -> None:
        balances.save(self.db, self.buckets.balances(monotonic()), utc_now_us())

    async def _measure_lag(self) -> None:
        while True:
            due = monotonic() + LAG_LOOK_S
            await asyncio.sleep(LAG_LOOK_S)
            self.metrics.loop_lag_s.observe(max(0.0, monotonic() - due))

    def _targets_of(self, name: str) -> Targets | None:
        return next((m.targets for m in self.config.models if m.name == name), None)

    def _flushed(self, flush: Flush) -> None:
        self.metrics.writer_batch_rows.observe(flush.written)
        self.metrics.writer_rows_lost.inc(flush.lost)

    def _exposition(self) -> bytes:
        self.fleet.refresh_metrics()
        self.metrics.writer_queue_depth.set(self.db.queued)
        for team in self.buckets.snapshot(monotonic()):
            if team.tokens is not None:
                self.metrics.team[team.team].bucket_balance_tokens.set(team.tokens.balance)
            elif team.team in self.metrics.team:  # its limit was taken away
                self.metrics.forget_team(team.team)
        return self.metrics.exposition()


async def _ended(server: asyncio.Task[None], listener: Listener) -> None:
    """Until a stopped server has closed its last connection, which must not take long any more."""
    try:
        async with asyncio.timeout(LAST_WORDS_S):
            await asyncio.wait([server])
    except TimeoutError:
        listener.force()
        await asyncio.wait([server])


def _freeze() -> None:
    """What lives as long as the process is not looked at again by the garbage collector."""
    gc.collect()
    gc.freeze()
