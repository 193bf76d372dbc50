"""Joins the runner of batches with the data path, the names, the files and the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from inferd.api.access import Access
from inferd.api.batch_lines import BatchLines
from inferd.batch.objects import FileStore
from inferd.batch.runner import Runner, Surroundings
from inferd.config.schema import Config
from inferd.errors import InvalidKey
from inferd.inference import Caller
from inferd.metrics import Metrics
from inferd.routing.batch_speed import BatchSpeed
from inferd.routing.scheduler import Scheduler
from inferd.storage.database import Database


def make_runner(
    *,
    db: Database,
    folder: Path,
    metrics: Metrics,
    files: FileStore,
    access: Access,
    lines: BatchLines,
    schedulers: Mapping[str, Scheduler],
    config: Callable[[], Config],
) -> Runner:
    """The runner whose spools are in `folder`. `config` gives what is in force."""

    def models_of(team: str) -> Mapping[str, str]:
        caller = Caller(team, "")
        try:
            return access.pools.names(caller, access.team(caller))
        except InvalidKey:  # removed from the config
            return {}

    def speed_of(model: str, prompt_tokens: int) -> BatchSpeed | None:
        pool = access.pools.pool_of(model)
        scheduler = schedulers.get(pool) if pool is not None else None
        return scheduler.batch_speed(prompt_tokens) if scheduler is not None else None

    server = config().server
    around = Surroundings(
        files=files,
        answer=lines.answer,
        render=lines.render,
        bills=lines.bills,
        settings=lambda: config().batches,
        line_bytes_max=server.body_bytes_max,
        try_s=server.request_deadline_s,
        models_of=models_of,
        speed_of=speed_of,
    )
    return Runner(db, folder, metrics, around)
