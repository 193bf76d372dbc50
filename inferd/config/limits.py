"""The rate limits that a team, one of its models or a key may have: rate and burst, in pairs."""

from __future__ import annotations

from typing import Final, Protocol

from pydantic import ConfigDict, Field

from inferd.config.section import ModelName, Section, Tokens

PAIRS: Final = (("tokens_per_s", "burst_tokens"), ("requests_per_s", "burst_requests"))
"""A rate needs its burst, and the other way round."""
TOKENS_PER_S_MAX: Final = 100_000_000
BURST_TOKENS_MAX: Final = 1_000_000_000_000
REQUESTS_PER_S_MIN: Final = 1e-6
REQUESTS_PER_S_MAX: Final = 1_000_000
BURST_REQUESTS_MAX: Final = 100_000_000


class Limited(Protocol):
    """Whatever has limits of its own."""

    @property
    def tokens_per_s(self) -> int | None: ...
    @property
    def burst_tokens(self) -> int | None: ...
    @property
    def requests_per_s(self) -> float | None: ...
    @property
    def burst_requests(self) -> int | None: ...


class Limits(Section):
    """Of one key; a limit that is not set is none."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    tokens_per_s: Tokens | None = Field(None, description="refill of the token bucket")
    burst_tokens: int | None = Field(
        None, ge=1, le=BURST_TOKENS_MAX, description="size of the token bucket"
    )
    requests_per_s: float | None = Field(
        None, gt=0, le=REQUESTS_PER_S_MAX, description="refill of the request bucket"
    )
    burst_requests: int | None = Field(
        None, ge=1, le=BURST_REQUESTS_MAX, description="size of the request bucket"
    )


NO_LIMITS: Final = Limits()


class LimitsOnModel(Limits):
    """What a team may use of one model, beside its limits for all of them."""

    model: ModelName = Field(description="the model's name, not an alias")
