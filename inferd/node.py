"""What one inferd is made of: builds every owner, connects their callbacks, applies a reload.

Owns the current config. It starts nothing: `app.py` opens what must be open before, runs the
services that are named here, and decides when they end.
"""

from __future__ import annotations

import asyncio
import logging
import random
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from inferd import logs
from inferd.api.access import Access
from inferd.api.admin import AdminApi
from inferd.api.batch_lines import BatchLines
from inferd.api.batch_service import make_runner
from inferd.api.batches import BatchApi
from inferd.api.bill_routes import BillApi
from inferd.api.files import FilesApi
from inferd.api.inference_endpoint import InferenceEndpoint, Operation
from inferd.api.key_admin import KeyAdmin
from inferd.api.models import Models
from inferd.api.node_admin import NodeAdmin
from inferd.api.node_routes import NodeApi
from inferd.api.operations import OPERATIONS
from inferd.api.probes import Probes
from inferd.api.recorder import Recorder
from inferd.api.refusals import Refusals
from inferd.api.routes import admin_app, public_app
from inferd.api.uploads import UploadsApi
from inferd.batch.objects import FileStore
from inferd.batch.runner import Runner
from inferd.capacity.keeper import CapacityKeeper
from inferd.clock import monotonic, utc_now_us
from inferd.config.change import Change
from inferd.config.load import LoadedConfig, load_config
from inferd.config.reload import TeamRemoved, diff, needing_restart
from inferd.count_checks import CountChecks
from inferd.dashboard.compose import dashboard
from inferd.dashboard.history import History
from inferd.dashboard.site import DashboardOr
from inferd.dispatch import Dispatch
from inferd.errors import ConfigError
from inferd.fleet import Fleet
from inferd.pairs import Pairs
from inferd.provision.check_files import check_files
from inferd.quota.buckets import Buckets
from inferd.quota.budgets import Budgets
from inferd.quota.estimate import Estimator
from inferd.quota.keys import KeyIndex
from inferd.quota.prices import PriceList
from inferd.routing.pools import Pools
from inferd.settlement import Ledger
from inferd.storage import audit, balances, rollup, unbilled
from inferd.storage.usage import record
from inferd.workers.gpu_watch import GpuWatch
from inferd.workers.records import Records
from inferd.workers.spec import pools_from_config
from inferd.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.types import ASGIApp, Scope

    from inferd.config.recording import Recording
    from inferd.config.schema import Config
    from inferd.inference import Caller
    from inferd.metrics import Metrics
    from inferd.provision.environment import EngineEnvironment
    from inferd.storage.database import Database
    from inferd.storage.keys import KeyRecord
    from inferd.storage.object_store import ObjectStore
    from inferd.workers.base import WorkerBase
    from inferd.workers.states import WorkerState

LAG_LOOK_S: Final = 0.5
BALANCES_SAVED_S: Final = 10.0
"""What teams spent after the last save is forgotten by a crash, not by an orderly end."""

log = logging.getLogger(__name__)


class Node:
    """The owners of one process, by name."""

    _reads: int = 0
    """Reloads that have begun."""
    _applied: int = 0
    """The number of the one whose file counts now."""

    def __init__(
        self,
        loaded: LoadedConfig,
        *,
        environment: EngineEnvironment,
        db: Database,
        keys: KeyIndex,
        objects: ObjectStore,
        metrics: Metrics,
        records: Records,
        watch: Callable[[WorkerBase, WorkerState, WorkerState], None] | None = None,
    ) -> None:
        """Every owner, in the order in which they know each other.

        `watch` is called synchronously whenever a worker changes; it must not block.
        """
        self.loaded = loaded
        self.db = db
        self.keys = keys
        self.metrics = metrics
        self.started_us = utc_now_us()
        self.stopping = False
        """Set once, by whoever ends the process."""
        rng = random.Random()
        config = loaded.config
        self.pools = Pools(config.models)
        self.access = Access(keys, self.pools, config.teams)
        self.buckets = Buckets(config.teams, monotonic())
        keys.watch(self._key_changed)
        self.prices = PriceList(config.models)
        self.budgets = Budgets(config.teams, config.billing.currency, utc_now_us())
        self.refusals = Refusals()
        self.estimator = Estimator()
        self.fleet = fleet = Fleet(metrics=metrics, record=partial(record, db), rng=rng)
        self.fleet.apply(config.models)
        self.pools.inflight_of = self.fleet.inflight_of
        self.fleet.watch = watch
        self.ledger = self._open_ledger()
        self.exact = self.ledger.exact
        self.count_checks = CountChecks(self.exact)
        self.fleet.on_ready = self.count_checks.ready
        self.dispatch = Dispatch(
            ledger=self.ledger,
            schedulers=self.fleet.schedulers,
            clients=self.fleet.clients,
            weight_of=self.access.weight,
            pairs=Pairs(fleet.decoders, fleet.clients, self.pools.ttft_timeout_of, metrics),
        )
        self.supervisor = self._supervisor(environment, rng)
        self.supervisor.inherit(records)
        self.supervisor.apply(pools_from_config(loaded))
        self.files = self._file_store(objects)
        self.history = self._plot_history()
        self.capacity = CapacityKeeper(db, metrics, lambda: self.fleet.every_scheduler)
        self.recorder = self._text_recorder()
        self._endpoints = [self.endpoint(operation) for operation in OPERATIONS]
        self.batches = self._batch_runner()

    def _supervisor(self, environment: EngineEnvironment, rng: random.Random) -> Supervisor:
        return Supervisor(
            self.fleet,
            metrics=self.metrics,
            environment=environment,
            folder=self.loaded.resolve(self.config.server.state_dir) / "workers",
            leases_of=self.fleet.leases_of,
            expected=self.fleet.expected,
            rng=rng,
        )

    def _open_ledger(self) -> Ledger:
        return Ledger(
            buckets=self.buckets,
            budgets=self.budgets,
            prices=self.prices,
            estimator=self.estimator,
            metrics=self.metrics,
            targets_of=self.pools.targets_of,
            record=partial(record, self.db),
            record_unbilled=partial(unbilled.record, self.db),
        )

    @property
    def config(self) -> Config:
        return self.loaded.config

    def public_app(self) -> ASGIApp:
        """What teams reach."""
        models = Models(self.access, self.fleet.pool_state, self.started_us // 1_000_000)
        count = self.metrics.http_request
        currency = lambda: self.config.billing.currency  # noqa: E731 - as it is when asked
        stored = [
            *FilesApi(self.access, self.files, self.config.server).routes(),
            *UploadsApi(self.access, self.files, self.config.server).routes(),
            *BatchApi(self.access, self.batches, self.db, currency).routes(),
        ]
        origins = self.config.server.cors_origins
        note = self.refusals.note
        return public_app(
            self._endpoints, models, self._probes(), count, origins, stored, note, self.db
        )

    def endpoint(
        self, operation: Operation, caller_of: Callable[[Scope], Caller] | None = None
    ) -> InferenceEndpoint:
        """One operation, asked for with a key, or by whoever `caller_of` says."""
        return InferenceEndpoint(
            operation,
            access=self.access,
            dispatch=self.dispatch,
            buckets=self.buckets,
            budgets=self.budgets,
            estimator=self.estimator,
            server=self.config.server,
            recorder=self.recorder,
            caller_of=caller_of,
        )

    def _plot_history(self) -> History:
        return History(
            schedulers=self.fleet.schedulers,
            workers=self.supervisor.workers.values,
            metrics=self.metrics,
        )

    def _text_recorder(self) -> Recorder:
        folder = self.loaded.resolve(self.config.server.state_dir) / "recordings"
        return Recorder(folder, self.metrics, self._recording_of)

    def _recording_of(self, team: str) -> Recording | None:
        return next((one.recording for one in self.config.teams if one.name == team), None)

    def admin_app(self, admin_key: str) -> ASGIApp:
        """What admins and ops reach."""
        keys = AdminApi(KeyAdmin(self.keys, lambda: self.config))
        apis = (keys, NodeApi(NodeAdmin(self)), BillApi(self))
        count = self.metrics.http_request
        note = partial(audit.record, self.db)
        beside = partial(DashboardOr, dashboard(self, admin_key, note))
        return admin_app(apis, self._probes(), admin_key, count, note, beside)

    def _file_store(self, objects: ObjectStore) -> FileStore:
        return FileStore(
            self.db,
            objects,
            limits=lambda: self.config.files,
            bytes_max_of=self.access.files_bytes_max,
            metrics=self.metrics,
        )

    def _batch_runner(self) -> Runner:
        return make_runner(
            db=self.db,
            folder=self.loaded.resolve(self.config.server.state_dir) / "batches",
            metrics=self.metrics,
            files=self.files,
            access=self.access,
            lines=BatchLines(self._endpoints, self.dispatch, self.ledger),
            schedulers=self.fleet.schedulers,
            config=lambda: self.config,
        )

    def _probes(self) -> Probes:
        return Probes(self.readiness, self._exposition)

    def background(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """The services beside the servers, the workers and the database writer, by name.

        They run from the start until the last request has ended, and are then cancelled.
        """
        return [
            ("loop lag meter", self._measure_lag()),
            ("balance keeper", self._keep_balances()),
            ("GPU watch", GpuWatch(self.supervisor.gpus, self.metrics).run()),
            ("ledger keeper", rollup.keep(self.db, lambda: self.config.billing.rows_kept_days)),
            ("capacity keeper", self.capacity.run()),
            ("text recorder", self.recorder.run()),
            ("file sweeper", self.files.run()),
            ("tokenizer checks", self.count_checks.run()),
            ("plot sampler", self.history.run()),
            ("batch runner", self.batches.run()),
        ]

    async def restore(self) -> None:
        """What outlives the process: balances, what was spent this month, files, batches."""
        self.budgets.restore(await rollup.spent_since(self.db, self.budgets.month_begins_us))
        self.buckets.restore(await balances.load(self.db, utc_now_us()), monotonic())
        await self.files.load()
        await self.batches.restore()

    def save(self) -> None:
        """Post what the next start restores."""
        balances.save(self.db, self.buckets.balances(monotonic()), utc_now_us())
        self.capacity.save()

    async def reload(self) -> list[Change]:
        """Apply the file as it is now, or nothing of it.

        Raises:
            ConfigError: the file is wrong, or one of its changes needs a restart.
        """
        try:
            # Model folders may lie on a slow disk: they are looked at off the loop.
            self._reads += 1
            number = self._reads
            loaded = await asyncio.to_thread(self._read_again)
            if number < self._applied:
                raise ConfigError(["a reload that began after this one is applied already"])  # noqa: TRY301 - as any refusal
            changes = self._changes_to(loaded)
            self._applied = number
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
        self.budgets.update(config.teams, config.billing.currency)
        self.prices.update(config.models)
        self.keys.set_teams(team.name for team in config.teams)
        for change in changes:
            if isinstance(change, TeamRemoved):
                self.metrics.forget_team(change.team.name)
                self.metrics.forget_files(change.team.name)
        self.supervisor.apply(pools_from_config(loaded))
        self.metrics.config_reloads["applied"].inc()
        log.info("reload applied", extra={"changes": [type(change).__name__ for change in changes]})
        return changes

    def acted(self, action: str, status: int) -> None:
        """Write down what was done to this node by other ways than the admin API."""
        audit.record(
            self.db,
            audit.Action(
                ts_us=utc_now_us(),
                actor="signal",
                action=action,
                target=str(self.loaded.path),
                status=status,
                request_id="",
            ),
        )

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

    def _key_changed(self, key: KeyRecord) -> None:
        limits = key if key.revoked_us is None else None
        self.buckets.limit_key(key.team, key.id, limits, monotonic())

    async def _keep_balances(self) -> None:
        while True:
            await asyncio.sleep(BALANCES_SAVED_S)
            balances.save(self.db, self.buckets.balances(monotonic()), utc_now_us())

    async def _measure_lag(self) -> None:
        while True:
            due = monotonic() + LAG_LOOK_S
            await asyncio.sleep(LAG_LOOK_S)
            self.metrics.loop_lag_s.observe(max(0.0, monotonic() - due))

    def _exposition(self) -> bytes:
        self.fleet.refresh_metrics()
        self.batches.refresh_metrics()
        self.metrics.writer_queue_depth.set(self.db.queued)
        for team in self.buckets.snapshot(monotonic()):
            if team.tokens is not None:
                self.metrics.team[team.team].bucket_balance_tokens.set(team.tokens.balance)
            elif team.team in self.metrics.team:  # its limit was taken away
                self.metrics.forget_team(team.team)
        for budget in self.budgets.snapshot(utc_now_us()):
            for share in budget.shares:
                ratio = self.metrics.budget_used_ratio.labels(budget.team, share.kind)
                ratio.set(float(share.of_limit))
        return self.metrics.exposition()
