"""Changes of a version's adapters, of what it takes and of its sides: part of `reload`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from inferd.config.change import Change
from inferd.config.variants import Adapter
from inferd.config.version import Version


@dataclass(frozen=True, slots=True)
class VersionSettingsChanged(Change):
    """Which requests it takes, and how its sides are waited for. No worker is replaced."""

    model: str
    before: Version
    after: Version


@dataclass(frozen=True, slots=True)
class AdapterAdded(Change):
    model: str
    version: str
    adapter: Adapter


@dataclass(frozen=True, slots=True)
class AdapterRemoved(Change):
    """Also the old half of one that changed. Its name is unknown at once."""

    model: str
    version: str
    adapter: Adapter


def sides_differ(before: Version, after: Version) -> bool:
    """Whether engines must be started again for their sides."""
    transfers = [one.split.transfer if one.split else None for one in (before, after)]
    return transfers[0] != transfers[1]


def variant_changes(model: str, before: Version, after: Version) -> Iterator[Change]:
    """Those that replace no worker."""
    name = after.version
    split_live = before.split != after.split and not sides_differ(before, after)
    if before.takes != after.takes or split_live:
        yield VersionSettingsChanged(model, before, after)
    for adapter in after.adapters:
        if adapter not in before.adapters:
            yield AdapterAdded(model, name, adapter)
    for adapter in before.adapters:
        if adapter not in after.adapters:
            yield AdapterRemoved(model, name, adapter)
