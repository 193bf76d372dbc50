"""What differs between two configurations, as typed changes in the order they are applied. Pure.

Every kind of change says what it takes: `live`, `drain` (workers are drained and replaced) or
`restart`. A file with one `NeedsRestart` is refused whole. What is added comes first and what is
removed last, so that nothing ever refers to what is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Final

from inferd.config.batches import Batches
from inferd.config.change import Change, Reload
from inferd.config.files import Files
from inferd.config.locate import KeyPath, show_path
from inferd.config.money import Billing, Prices
from inferd.config.schema import Config, Logs, Model, Server, Team
from inferd.config.section import Section
from inferd.config.variant_changes import (
    AdapterAdded,
    AdapterRemoved,
    VersionSettingsChanged,
    sides_differ,
    variant_changes,
)
from inferd.config.version import AttachedWorker, Version, Workers
from inferd.config.watchdog import Watchdog

RESTART_REASONS: Final = {
    "listen": "inferd takes its addresses once, at start",
    "admin_listen": "inferd takes its addresses once, at start",
    "state_dir": "the database and the lock in it are held while inferd runs",
    "environment": "every engine must run from one environment",
    "endpoint": "the exporter of spans is made once, at start",
    "sample_ratio": "the exporter of spans is made once, at start",
}
_LIVE: Final[frozenset[tuple[KeyPath, str]]] = frozenset({(("server",), "keep_workers")})
"""Keys that need no restart, in sections whose others do."""
_SERVER_REASON: Final = "the listeners are made with it, once, at start"


@dataclass(frozen=True, slots=True)
class NeedsRestart(Change):
    path: KeyPath
    reason: str

    reload: ClassVar[Reload] = "restart"

    def __str__(self) -> str:
        return f"{show_path(self.path)} needs a restart: {self.reason}"


@dataclass(frozen=True, slots=True)
class ServerChanged(Change):
    """Keys of [server] that need no restart."""

    before: Server
    after: Server


@dataclass(frozen=True, slots=True)
class LogLevelChanged(Change):
    before: Logs
    after: Logs


@dataclass(frozen=True, slots=True)
class BillingChanged(Change):
    before: Billing
    after: Billing


@dataclass(frozen=True, slots=True)
class FileLimitsChanged(Change):
    """How large, how many, how long. Where files are kept needs a restart."""

    before: Files
    after: Files


@dataclass(frozen=True, slots=True)
class ModelAdded(Change):
    """With all its versions: they are not reported again."""

    model: Model


@dataclass(frozen=True, slots=True)
class ModelRemoved(Change):
    """With all its versions, whose workers drain."""

    model: Model

    reload: ClassVar[Reload] = "drain"


@dataclass(frozen=True, slots=True)
class BatchesChanged(Change):
    before: Batches
    after: Batches


@dataclass(frozen=True, slots=True)
class ModelChanged(Change):
    """Its own keys, targets or queue; versions are reported by themselves."""

    before: Model
    after: Model


@dataclass(frozen=True, slots=True)
class VersionAdded(Change):
    model: str
    version: Version


@dataclass(frozen=True, slots=True)
class VersionRemoved(Change):
    model: str
    version: Version

    reload: ClassVar[Reload] = "drain"


@dataclass(frozen=True, slots=True)
class VersionChanged(Change):
    """What its engines are started with: each worker is drained and replaced."""

    model: str
    before: Version
    after: Version

    reload: ClassVar[Reload] = "drain"


@dataclass(frozen=True, slots=True)
class CacheScopeChanged(Change):
    """For the requests that come; no worker is replaced."""

    model: str
    version: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class WorkerCountChanged(Change):
    """Workers too many drain; the others go on."""

    model: str
    version: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class WorkerSettingsChanged(Change):
    """How inferd treats its workers: drain time, restarts, log size. No worker is replaced."""

    model: str
    version: str
    before: Workers
    after: Workers


@dataclass(frozen=True, slots=True)
class WatchdogChanged(Change):
    """When its workers are given up, from the next look on. No worker is replaced."""

    model: str
    version: str
    before: Watchdog
    after: Watchdog


@dataclass(frozen=True, slots=True)
class PricesChanged(Change):
    """Requests that are settled from now on cost the new ones."""

    model: str
    version: str
    before: Prices
    after: Prices


@dataclass(frozen=True, slots=True)
class AttachedAdded(Change):
    model: str
    version: str
    attached: AttachedWorker


@dataclass(frozen=True, slots=True)
class AttachedRemoved(Change):
    """Also the old half of one that changed."""

    model: str
    version: str
    attached: AttachedWorker

    reload: ClassVar[Reload] = "drain"


@dataclass(frozen=True, slots=True)
class TeamAdded(Change):
    team: Team


@dataclass(frozen=True, slots=True)
class TeamRemoved(Change):
    team: Team


@dataclass(frozen=True, slots=True)
class TeamChanged(Change):
    before: Team
    after: Team


ORDER: Final[tuple[type[Change], ...]] = (
    NeedsRestart,
    ServerChanged,
    LogLevelChanged,
    BillingChanged,
    FileLimitsChanged,
    BatchesChanged,
    ModelAdded,
    VersionAdded,
    AttachedAdded,
    AdapterAdded,
    ModelChanged,
    VersionChanged,
    CacheScopeChanged,
    PricesChanged,
    VersionSettingsChanged,
    WorkerSettingsChanged,
    WatchdogChanged,
    WorkerCountChanged,
    TeamAdded,
    TeamChanged,
    TeamRemoved,
    AdapterRemoved,
    AttachedRemoved,
    VersionRemoved,
    ModelRemoved,
)


def diff(old: Config, new: Config) -> list[Change]:
    """All changes from `old` to `new`, in the order of `ORDER`; [] when both mean the same."""
    changes = chain(
        _restarts(("server",), old.server, new.server),
        _server_changes(old.server, new.server),
        _restarts(("engine",), old.engine, new.engine),
        _restarts(("tracing",), old.tracing, new.tracing),
        [LogLevelChanged(old.logs, new.logs)] if old.logs != new.logs else [],
        [BillingChanged(old.billing, new.billing)] if old.billing != new.billing else [],
        _file_changes(old.files, new.files),
        [BatchesChanged(old.batches, new.batches)] if old.batches != new.batches else [],
        _model_changes(old, new),
        _team_changes(old, new),
    )
    return sorted(changes, key=lambda change: ORDER.index(type(change)))


def needing_restart(changes: Iterable[Change]) -> list[NeedsRestart]:
    """Why a file cannot be applied while inferd runs; [] when it can."""
    return [change for change in changes if isinstance(change, NeedsRestart)]


def _changed_keys(before: Section, after: Section) -> list[str]:
    return [key for key in type(before).model_fields if getattr(before, key) != getattr(after, key)]


def _restarts(path: KeyPath, before: Section, after: Section) -> Iterator[Change]:
    for key in _changed_keys(before, after):
        if (path, key) in _LIVE:
            continue
        yield NeedsRestart((*path, key), RESTART_REASONS.get(key, _SERVER_REASON))


def _server_changes(before: Server, after: Server) -> Iterator[Change]:
    if any((("server",), key) in _LIVE for key in _changed_keys(before, after)):
        yield ServerChanged(before, after)


def _file_changes(before: Files, after: Files) -> Iterator[Change]:
    """Keys of the store itself say in the schema that they need a restart."""
    changed = _changed_keys(before, after)
    fixed = [key for key in changed if Files.model_fields[key].json_schema_extra]
    for key in fixed:
        yield NeedsRestart(("files", key), "files that are there would not be found any more")
    if len(changed) > len(fixed):
        yield FileLimitsChanged(before, after)


def _team_changes(old: Config, new: Config) -> Iterator[Change]:
    before = {team.name: team for team in old.teams}
    after = {team.name: team for team in new.teams}
    for name, team in after.items():
        if name not in before:
            yield TeamAdded(team)
        elif before[name] != team:
            yield TeamChanged(before[name], team)
    for name, team in before.items():
        if name not in after:
            yield TeamRemoved(team)


def _model_changes(old: Config, new: Config) -> Iterator[Change]:
    before = {model.name: model for model in old.models}
    after = {model.name: model for model in new.models}
    for name, model in after.items():
        if name not in before:
            yield ModelAdded(model)
            continue
        if set(_changed_keys(before[name], model)) - {"versions"}:
            yield ModelChanged(before[name], model)
        yield from _version_changes(before[name], model)
    for name, model in before.items():
        if name not in after:
            yield ModelRemoved(model)


_STARTED_WITH: Final = ("context_tokens_max", "kind", "dimensions")
"""Keys of a model that its engines are started with."""


_NOT_STARTED_WITH: Final = frozenset(
    {"workers", "watchdog", "attached", "cache_scope", "prices", "adapters", "takes", "split"}
)
"""Keys of a version that do not need its engines to be started again, or not each change of it."""


def _version_changes(old: Model, new: Model) -> Iterator[Change]:
    before = {version.version: version for version in old.versions}
    after = {version.version: version for version in new.versions}
    restarted = any(getattr(old, key) != getattr(new, key) for key in _STARTED_WITH)
    for name, version in after.items():
        if name not in before:
            yield VersionAdded(new.name, version)
            continue
        was = before[name]
        changed = set(_changed_keys(was, version)) - _NOT_STARTED_WITH
        if sides_differ(was, version):
            changed.add("split")
        yield from variant_changes(new.name, was, version)
        if changed or (restarted and version.weights is not None):
            yield VersionChanged(new.name, was, version)
        if was.cache_scope != version.cache_scope:
            yield CacheScopeChanged(new.name, name, was.cache_scope, version.cache_scope)
        if was.prices != version.prices:
            yield PricesChanged(new.name, name, was.prices, version.prices)
        yield from _worker_changes(new.name, was, version)
    for name, version in before.items():
        if name not in after:
            yield VersionRemoved(new.name, version)


def _worker_changes(model: str, before: Version, after: Version) -> Iterator[Change]:
    name = after.version
    changed = set(_changed_keys(before.workers, after.workers))
    if changed - {"count"}:
        yield WorkerSettingsChanged(model, name, before.workers, after.workers)
    if before.watchdog != after.watchdog:
        yield WatchdogChanged(model, name, before.watchdog, after.watchdog)
    if "count" in changed:
        yield WorkerCountChanged(model, name, before.workers.count, after.workers.count)
    for attached in after.attached:
        if attached not in before.attached:
            yield AttachedAdded(model, name, attached)
    for attached in before.attached:
        if attached not in after.attached:
            yield AttachedRemoved(model, name, attached)
