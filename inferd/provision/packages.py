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
        try:
            found = _only(pin, installed.get(pin.name, []))
            rows = _rows(found.info)
            if every_file:
                sound_bytes += _whole(site_packages, rows, installed)
        except _Unsound as unsound:
            faults.append(Fault(pin, str(unsound)))
        else:
            versions[pin.name] = found.version
    return Inspection(versions, tuple(faults), sound_bytes)


class _Unsound(Exception):
    """Why a package is not as it should be."""


def _only(pin: Pin, found: list[Distribution]) -> Distribution:
    if not found:
        raise _Unsound("not installed")
    if len(found) > 1:
        versions = ", ".join(distribution.version for distribution in found)
        raise _Unsound(f"{len(found)} versions at once: {versions}")
    if not pin.allows(found[0].version):
        raise _Unsound(f"version {found[0].version} instead of {pin.version}")
    return found[0]


@dataclass(frozen=True, slots=True)
class _Row:
    """A file in pip's list of a package's; digest and size are empty for the list itself."""

    path: str
    digest: str
    size: int | None


def _rows(info: Path) -> list[_Row]:
    try:
        with (info / "RECORD").open(newline="", encoding="utf-8") as file:
            rows = [
                _Row(path, digest, int(size) if size else None)
                for path, digest, size in csv.reader(file)
            ]
    except (OSError, ValueError):
        rows = []
    # pip writes the list last, and itself last into it.
    if not any(row.path == f"{info.name}/RECORD" for row in rows):
        raise _Unsound("its list of files is missing or unreadable")
    return rows


def _whole(
    site_packages: Path, rows: Iterable[_Row], installed: dict[str, list[Distribution]]
) -> int:
    """The size of all of `rows` together; _Unsound names one that is missing or cut."""
    total = 0
    root = f"{site_packages}/"
    for row in rows:
        try:
            actual = os.stat(root + row.path).st_size  # noqa: PTH116 - of 40,000 files
        except OSError:
            raise _Unsound(f"{row.path} is missing") from None
        total += actual
        if row.size is None or actual == row.size:
            continue
        if all(actual != other.size for other in _claims(row.path, installed)):
            raise _Unsound(f"{row.path} has {actual:,} bytes instead of {row.size:,}")
    return total


def _claims(path: str, installed: dict[str, list[Distribution]]) -> Iterator[_Row]:
    """What every package's list says of `path`: some bring the same file, and the last one wins."""
    for found in installed.values():
        for distribution in found:
            try:
                yield from (row for row in _rows(distribution.info) if row.path == path)
            except _Unsound:
                continue


def altered_files(site_packages: Path, pins: Iterable[Pin]) -> Iterator[str]:
    """Files whose contents are not what pip unpacked, as lines; reads everything (seconds)."""
    installed = distributions(site_packages)
    for pin in pins:
        for distribution in installed.get(pin.name, []):
            try:
                rows = _rows(distribution.info)
            except _Unsound as unsound:
                yield f"{pin.name}: {unsound}"
                continue
            for row in rows:
                if not _same(site_packages / row.path, [row]) and not _same(
                    site_packages / row.path, _claims(row.path, installed)
                ):
                    yield f"{pin.name}: {row.path} has other contents than it was installed with"


def _same(path: Path, claims: Iterable[_Row]) -> bool:
    """Whether a file has the contents that one of `claims` has."""
    for row in claims:
        algorithm, _, expected = row.digest.partition("=")
        if not algorithm:
            return True
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, algorithm).digest()
        except OSError:
            return False
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") == expected:
            return True
    return False


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
