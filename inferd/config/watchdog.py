"""The section that says when a worker's silence is a hang, and what a worker may hold."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from inferd.config.section import Seconds, Section


class Watchdog(Section):
    """When a worker that has become silent, or too large, is given up."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    act: Literal["kill", "log"] = Field(
        "kill", description="what a verdict does; `log` only logs and counts it"
    )
    silence_s: Seconds = Field(
        10.0, description="with work, no sign of progress this long beyond what is expected"
    )
    slack: float = Field(
        6.0, ge=1, le=1_000, description="expected work may take so many times as long as predicted"
    )
    silence_s_max: Seconds = Field(
        600.0, description="the most that both together allow, however long the prompts"
    )
    unanswered_s: Seconds = Field(
        30.0, description="without work, probes unanswered this long; also the wait for /health"
    )
    health_idle_s: float = Field(
        300.0,
        ge=0,
        le=86_400,
        description="a worker idle this long is asked for one token; 0: never",
    )
    memory_bytes_max: int | None = Field(
        None,
        ge=67_108_864,
        le=1_125_899_906_842_624,
        description="resident memory of its processes; beyond it drains and is started again",
    )
