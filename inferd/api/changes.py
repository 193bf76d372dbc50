"""The changes of a reload in words, one line each. Pure."""

from __future__ import annotations

from inferd.config.change import Change
from inferd.config.reload import (
    AttachedAdded,
    AttachedRemoved,
    BatchesChanged,
    BillingChanged,
    CacheScopeChanged,
    FileLimitsChanged,
    LogLevelChanged,
    ModelAdded,
    ModelChanged,
    ModelRemoved,
    PricesChanged,
    ServerChanged,
    TeamAdded,
    TeamChanged,
    TeamRemoved,
    VersionAdded,
    VersionChanged,
    VersionRemoved,
    WatchdogChanged,
    WorkerCountChanged,
    WorkerSettingsChanged,
)
from inferd.config.section import Section
from inferd.config.variant_changes import AdapterAdded, AdapterRemoved, VersionSettingsChanged


def in_words(change: Change) -> str:
    """What changes, and what that does to running workers and requests if it does anything."""
    match change:
        case ServerChanged(before, after) | LogLevelChanged(before, after):
            section = "server" if isinstance(change, ServerChanged) else "logs"
            return f"{section}: {_differences(before, after)}"
        case TeamAdded(team):
            return f"team {team.name} is added"
        case TeamChanged(before, after):
            return f"team {after.name}: {_differences(before, after)}"
        case TeamRemoved(team):
            return f"team {team.name} is removed; its keys are refused from now on"
        case ModelAdded(model):
            return f"model {model.name} is added; its workers start"
        case ModelChanged(before, after):
            return f"model {after.name}: {_differences(before, after)}"
        case ModelRemoved(model):
            return f"model {model.name} is removed; its workers drain and stop"
        case _:
            return _of_a_version(change)


def _of_a_version(change: Change) -> str:
    match change:
        case VersionAdded(model, version):
            return f"{model}@{version.version} is added; its workers start"
        case VersionRemoved(model, version):
            return f"{model}@{version.version} is removed; its workers drain and stop"
        case VersionChanged(model, before, after):
            changed = _differences(before, after) or "context_tokens_max of its model"
            return (
                f"{model}@{after.version}: {changed}; its workers drain and are replaced, one"
                " after another"
            )
        case CacheScopeChanged(model, version, before, after):
            return f"{model}@{version}: cache_scope {before} -> {after} for what comes"
        case _:
            return _of_workers(change)


def _of_workers(change: Change) -> str:
    match change:
        case WorkerCountChanged(model, version, before, after):
            then = "more start" if after > before else "those too many drain and stop"
            return f"{model}@{version}: workers {before} -> {after}; {then}"
        case WorkerSettingsChanged(model, version, before, after) | WatchdogChanged(
            model, version, before, after
        ):
            what = "watchdog" if isinstance(change, WatchdogChanged) else "workers"
            return f"{model}@{version}: {what}: {_differences(before, after)}"
        case _:
            return _of_a_part(change)


def _of_a_part(change: Change) -> str:
    match change:
        case VersionSettingsChanged(model, before, after):
            changed = _differences(before, after)
            return f"{model}@{after.version}: {changed}; no worker is replaced"
        case AdapterAdded(model, version, adapter):
            return f"{model}@{version}: adapter {adapter.name} is added and loaded"
        case AdapterRemoved(model, version, adapter):
            return (
                f"{model}@{version}: adapter {adapter.name} ({adapter.weights}) is removed: its"
                " name is unknown at once, and it is unloaded when its requests have ended"
            )
        case AttachedAdded(model, version, attached):
            return f"{model}@{version}: attached worker {attached.url} is added"
        case AttachedRemoved(model, version, attached):
            return f"{model}@{version}: attached worker {attached.url} is let go when it is idle"
        case _:
            return _of_money(change)


def _of_money(change: Change) -> str:
    match change:
        case FileLimitsChanged(before, after):
            return f"files: {_differences(before, after)}"
        case BatchesChanged(before, after):
            return f"batches: {_differences(before, after)}"
        case BillingChanged(before, after):
            return f"billing: {_differences(before, after)}"
        case PricesChanged(model, version, before, after):
            return f"{model}@{version}: prices: {_differences(before, after)}"
        case _:
            return str(change)


_TOLD_ON_THEIR_OWN = frozenset(
    {
        "versions",
        "workers",
        "watchdog",
        "attached",
        "adapters",
        "count",
        "cache_scope",
        "prices",
    }
)


def _differences(before: Section, after: Section) -> str:
    """`key old -> new` for plain values, only the key for tables and lists."""
    told = []
    for key in type(before).model_fields:
        old, new = getattr(before, key), getattr(after, key)
        if old == new or key in _TOLD_ON_THEIR_OWN:
            continue
        plain = all(value is None or isinstance(value, str | int | float) for value in (old, new))
        told.append(f"{key} {_shown(old)} -> {_shown(new)}" if plain else f"{key} changed")
    return ", ".join(told)


def _shown(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "unset" if value is None else str(value)
