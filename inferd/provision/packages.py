"""What lies in an environment's site-packages, held against the pins of a recipe.

Reads only pip's own records, so it needs no python of that environment and costs 0.2 s for the
40,000 files of an engine. Sizes are compared here, contents only by `altered_files`.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferd.provision.recipes import Pin

_SUFFIX: Final = ".dist-info"


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed package, as its `.dist-info` folder names it."""

    name: str
    version: str
    info: Path


@dataclass(frozen=True, slots=True)
class Fault:
    """A pin that does not hold, and why."""

    pin: Pin
    reason: str

    def __str__(self) -> str:
        return f"{self.pin.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Inspection:
    """`sound_bytes` is what the files of sound packages take; 0 unless every file was looked at."""

    versions: dict[str, str]
    faults: tuple[Fault, ...]
    sound_bytes: int


def normal(name: str) -> str:
    """A package's name as pins spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(site_packages: Path) -> dict[str, list[Distribution]]:
    """All installed packages by name; more than one of a name is the mark of a broken update."""
    found: dict[str, list[Distribution]] = {}
    if not site_packages.is_dir():
        return found
    for info in sorted(site_packages.iterdir()):
        if info.name.endswith(_SUFFIX) and not info.name.startswith("~"):
            name, _, version = info.name.removesuffix(_SUFFIX).rpartition("-")
            distribution = Distribution(normal(name), version, info)
            found.setdefault(distribution.name, []).append(distribution)
    return found


def inspect(site_packages: Path, pins: Iterable[Pin], *, every_file: bool) -> Inspection:
    """Which pins hold. With `every_file`, each file a package brought must be there, whole."""
    installed = distributions(site_packages)
    versions: dict[str, str] = {}
    faults: list[Fault] = []
    sound_bytes = 0
    for pin in pins:
        reason, size = _fault(pin, installed.get(pin.name, []), every_file=every_file)
        if reason is None:
            versions[pin.name] = installed[pin.name][0].version
            sound_bytes += size
        else:
            faults.append(Fault(pin, reason))
    return Inspection(versions, tuple(faults), sound_bytes)


def _fault(pin: Pin, found: list[Distribution], *, every_file: bool) -> tuple[str | None, int]:
    if not found:
        return "not installed", 0
    if len(found) > 1:
        return f"{len(found)} versions at once: {_versions(found)}", 0
    if not pin.allows(found[0].version):
        return f"version {found[0].version} instead of {pin.version}", 0
    try:
        rows = list(_rows(found[0].info))
        return (None, 0) if not every_file else _files_fault(found[0].info.parent, rows)
    except (OSError, ValueError):
        return "its list of files is missing or unreadable", 0


def _versions(found: Iterable[Distribution]) -> str:
    return ", ".join(distribution.version for distribution in found)


def _files_fault(
    site_packages: Path, rows: list[tuple[str, str, int | None]]
) -> tuple[str | None, int]:
    total = 0
    root = f"{site_packages}/"
    for path, _digest, size in rows:
        try:
            actual = os.stat(root + path).st_size  # noqa: PTH116 - of 40,000 files
        except OSError:
            return f"{path} is missing", 0
        if size is not None and actual != size:
            return f"{path} has {actual:,} bytes instead of {size:,}", 0
        total += actual
    return None, total


def _rows(info: Path) -> Iterator[tuple[str, str, int | None]]:
    """Path, digest and size of each file; ValueError when the list is cut short or empty."""
    seen_self = False
    with (info / "RECORD").open(newline="", encoding="utf-8") as file:
        for row in csv.reader(file):
            path, digest, size = row
            seen_self = seen_self or path == f"{info.name}/RECORD"
            yield path, digest, int(size) if size else None
    if not seen_self:
        raise ValueError(f"{info}/RECORD does not list itself")


def altered_files(site_packages: Path, pins: Iterable[Pin]) -> Iterator[str]:
    """Files whose contents are not what pip unpacked, as lines; reads everything (seconds)."""
    installed = distributions(site_packages)
    for pin in pins:
        for distribution in installed.get(pin.name, []):
            for path, digest, _size in _rows(distribution.info):
                if digest and not _same(site_packages / path, digest):
                    yield f"{pin.name}: {path} has other contents than it was installed with"


def _same(path: Path, recorded: str) -> bool:
    algorithm, _, expected = recorded.partition("=")
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, algorithm).digest()
    except OSError:
        return False
    return base64.urlsafe_b64encode(digest).decode().rstrip("=") == expected


def clear_way(site_packages: Path, faults: Iterable[Fault]) -> None:
    """Removes what would make pip stop or take a broken package for an installed one.

    Without its `.dist-info` pip unpacks a package over what is left of it.
    """
    installed = distributions(site_packages)
    for fault in faults:
        for distribution in installed.get(fault.pin.name, []):
            shutil.rmtree(distribution.info)
    if site_packages.is_dir():
        # What pip moved aside and had no time to delete.
        for path in site_packages.glob("~*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
