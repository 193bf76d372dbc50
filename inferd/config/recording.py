"""The section `teams.recording` of inferd.toml: a team's own text is kept, and for how long."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from inferd.config.section import Section


class Recording(Section):
    """Keep what the team asks and what it is answered. Without this section nothing is kept."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    kept_days: int = Field(7, ge=1, le=366, description="days until it is deleted")
    bytes_max: int = Field(
        1_073_741_824,
        ge=1_000_000,
        le=1_000_000_000_000_000,
        description="all of it together; the oldest hours are deleted first",
    )
