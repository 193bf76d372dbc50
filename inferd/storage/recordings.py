"""The text of teams that want theirs kept: apart from the ledger, for its owner's eyes alone.

A folder a team, a file of JSON lines an hour; file mode 0600, folder mode 0700. Every function here
blocks and belongs into a thread. Whole hours are deleted, so a file never has to be rewritten.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

HOUR_US: Final = 3_600_000_000
DAY_HOURS: Final = 24
SUFFIX: Final = ".jsonl"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request's text, as the client sent it and as it was answered."""

    request_id: str
    team: str
    at_us: int
    """Of its arrival."""
    path: str
    request: str
    answer: str
    cut: bool
    """Whether a text was longer than is kept of one."""


@dataclass(frozen=True, slots=True)
class Kept:
    """How much is there of one team."""

    team: str
    bytes: int
    since_us: int
    """The begin of the oldest hour."""


def append(folder: Path, recorded: Iterable[Recorded]) -> None:
    """Write them down, each in its hour. Raises OSError."""
    by_file: dict[Path, list[Recorded]] = {}
    for one in recorded:
        by_file.setdefault(_file(folder, one.team, one.at_us), []).append(one)
    for path, found in by_file.items():
        folder.mkdir(mode=0o700, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os.fdopen(os.open(path, flags, 0o600), "ab") as file:
            file.write(b"".join(orjson.dumps(asdict(one)) + b"\n" for one in found))


def find(folder: Path, team: str, request_id: str, around_us: int) -> Recorded | None:
    """The text of one request that arrived within an hour of a time."""
    for at_us in (around_us, around_us - HOUR_US, around_us + HOUR_US):
        for line in _lines(_file(folder, team, at_us)):
            if request_id.encode() not in line:
                continue
            told = _decoded(line)
            if told is not None and told["request_id"] == request_id:
                return Recorded(**told)
    return None


def kept(folder: Path) -> list[Kept]:
    """What is there, by team."""
    found = []
    for home in _folders(folder):
        hours = _hours(home)
        if hours:
            found.append(Kept(home.name, sum(hours.values()), min(hours) * HOUR_US))
    return found


def trim(folder: Path, team: str, kept_days: int, bytes_max: int, now_us: int) -> None:
    """Delete the hours of a team that are too old, and the oldest ones of too much."""
    hours = _hours(folder / team)
    oldest = now_us // HOUR_US - kept_days * DAY_HOURS
    left = sum(hours.values())
    for hour in sorted(hours):
        if hour >= oldest and left <= bytes_max:
            return
        left -= hours[hour]
        (folder / team / f"{hour}{SUFFIX}").unlink(missing_ok=True)


def delete(folder: Path, team: str) -> int:
    """Delete all of a team; how many bytes that were."""
    home = folder / team
    size = sum(_hours(home).values())
    if home.is_dir():
        shutil.rmtree(home)
    return size


def _file(folder: Path, team: str, at_us: int) -> Path:
    return folder / team / f"{at_us // HOUR_US}{SUFFIX}"


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.is_dir())


def _hours(home: Path) -> dict[int, int]:
    """The size of each hour's file."""
    return {
        int(path.stem): path.stat().st_size
        for path in home.glob(f"*{SUFFIX}")
        if path.stem.isdecimal()
    }


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except FileNotFoundError:
        return


def _decoded(line: bytes) -> dict[str, Any] | None:
    """None of a line that a crash has cut."""
    try:
        told = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return told if isinstance(told, dict) else None
