"""What a model's requests are sampled with where they do not say, and which extras they may use."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from inferd.config.section import Section

Extra = Literal[
    "chat_template_kwargs",
    "continue_final_message",
    "ebnf",
    "ignore_eos",
    "min_p",
    "min_tokens",
    "regex",
    "repetition_penalty",
    "separate_reasoning",
    "stop_token_ids",
    "top_k",
]
"""The engine's own parameters that a request may use beside the public API's."""


class SamplingDefaults(Section):
    """In place of the model's own `generation_config.json`, for requests that do not say."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    temperature: float | None = Field(None, ge=0, le=2, description="unset: the model's own")
    top_p: float | None = Field(None, gt=0, le=1, description="unset: the model's own")
    top_k: int | None = Field(
        None, ge=1, le=1_000_000, description="likeliest tokens to choose from"
    )
    min_p: float | None = Field(None, ge=0, le=1, description="share of the likeliest token")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="per occurrence")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="once it occurred")
    repetition_penalty: float | None = Field(None, gt=0, le=2, description="1 is none")
    output_tokens: int | None = Field(
        None,
        ge=1,
        le=100_000_000,
        description="max_tokens of a chat that names none; unset: output_tokens_max",
    )
