"""The section of batches: how much of them runs, waits and is tried."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from inferd.config.section import Seconds, Section


class Batches(Section):
    """Bounds of batch work. What is left free for it is said by each model's queue."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    lines_in_flight_max: int = Field(
        64, ge=1, le=4_096, description="lines of one model being served at a time, at most"
    )
    attempts_max: int = Field(
        3, ge=1, le=100, description="placements of a line that may fail before it has failed"
    )
    unfinished_per_team_max: int = Field(
        100, ge=1, le=10_000, description="batches of one team that have not ended"
    )
    queued_tokens_per_team_max: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000_000,
        description="estimated tokens of a team's unfinished batches; unset: no limit",
    )
    cancel_grace_s: Seconds = Field(
        30.0, description="lines being served may end this long after their batch is cancelled"
    )
