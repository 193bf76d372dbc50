"""What the commands about the bill have in common: the database to read, times, the currency."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import typer

from inferd.cli.durations import parse_duration
from inferd.cli.failure import FAILED, tell
from inferd.cli.server_place import find_server
from inferd.clock import utc_now_us
from inferd.errors import InferdError
from inferd.storage.reading import Reading, reading

T = TypeVar("T")

_DATE = re.compile(r"\d{4}-\d\d(-\d\d(T\d\d(:\d\d)?)?)?")


def run(config: Path, action: Callable[[Reading], Awaitable[T]]) -> T:
    """Read the database of the server that `config` describes, whether it runs or not."""
    try:
        with reading(find_server(config).state_dir) as db:
            return asyncio.run(_awaited(action(db)))
    except InferdError as error:
        tell(error)
        raise typer.Exit(FAILED) from error


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def moment(text: str | None, option: str) -> int | None:
    """Microseconds UTC: `2026-12-01`, `2026-12-01T10`, a month, or how long ago: `7d`, `24h`."""
    if text is None:
        return None
    now_us = utc_now_us()
    if text == "month":
        now = datetime.fromtimestamp(now_us // 1_000_000, UTC)
        return _microseconds(now.replace(day=1, hour=0, minute=0, second=0, microsecond=0))
    if _DATE.fullmatch(text):
        whole = text if len(text) > len("2026-12") else f"{text}-01"
        try:
            return _microseconds(datetime.fromisoformat(whole).replace(tzinfo=UTC))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=option) from error
    try:
        ago = timedelta(seconds=parse_duration(text))
    except ValueError as error:
        told = f"{text!r} is no time: write 2026-12-01, 2026-12-01T10, or how long ago, like 7d"
        raise typer.BadParameter(told, param_hint=option) from error
    return now_us - int(ago.total_seconds() * 1_000_000)


def currency(config: Path) -> str:
    """What amounts are in, by the file as it is; the default where it says nothing."""
    from inferd.config.money import Billing

    try:
        billing = tomllib.loads(config.read_text(encoding="utf-8")).get("billing", {})
    except (OSError, ValueError):
        billing = {}
    return str(billing.get("currency", Billing.model_fields["currency"].default))


def _microseconds(time: datetime) -> int:
    return int(time.timestamp()) * 1_000_000
