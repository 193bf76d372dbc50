"""The section `[tracing]`: where spans of requests go."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from inferd.config.section import URL, Section


class Tracing(Section):
    """OpenTelemetry spans of requests and their attempts; off without an endpoint."""

    model_config = ConfigDict(json_schema_extra={"reload": "restart"})

    endpoint: str | None = Field(
        None, pattern=URL, max_length=1_024, description="OTLP over HTTP; unset: no spans"
    )
    sample_ratio: float = Field(
        1.0, ge=0, le=1, description="share of requests that are traced, unless their client says"
    )
