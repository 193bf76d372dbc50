"""The sections of a version that make it more than weights: adapters, sides, what it takes.

A version may serve LoRA adapters under names of their own, be chosen by prompt length, team or load
instead of the model's default, and run prefill and decode on separate workers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from inferd.config.section import Folder, ModelName, Name, Seconds, Section


class Lora(Section):
    """How the engine of a version keeps LoRA adapters."""

    model_config = ConfigDict(json_schema_extra={"reload": "drain"})

    rank_max: int = Field(16, ge=1, le=512, description="largest rank of its adapters")
    targets: tuple[Name, ...] = Field(
        ("all",), min_length=1, max_length=32, description="modules that they change"
    )
    running_max: int = Field(
        8, ge=1, le=256, description="adapters whose requests are decoded together"
    )
    loaded_max: int | None = Field(
        None, ge=1, le=256, description="adapters one worker holds; unset: all of them"
    )


class Adapter(Section):
    """A LoRA adapter on the version's weights, public under a name of its own."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    name: ModelName = Field(description="what clients write as `model`")
    weights: Folder = Field(description="adapter folder; relative to this file")


class Takes(Section):
    """Which requests go here instead of to the default version; pinned ones go where they say."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    prompt_tokens_min: int | None = Field(
        None, ge=1, le=100_000_000, description="prompts of at least so many tokens"
    )
    teams: tuple[Name, ...] = Field(
        (), max_length=1_000, description="all requests of these teams, while a worker is ready"
    )
    inflight_below: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="anybody's, while fewer than so many are in flight here and a worker is ready",
    )


class Split(Section):
    """Prefill and decode on separate workers; `workers.count` is then those that decode."""

    model_config = ConfigDict(json_schema_extra={"reload": "drain"})

    prefill_workers: int = Field(
        1,
        ge=1,
        le=64,
        description="workers that compute prompts",
        json_schema_extra={"reload": "live"},
    )
    ttft_timeout_s: Annotated[Seconds, Field(json_schema_extra={"reload": "live"})] = Field(
        30.0, description="from placement to the first output; a lost partner is told by then"
    )
    transfer: Literal["mooncake", "nixl"] = Field(
        "mooncake", description="what moves the KV cache between them"
    )
