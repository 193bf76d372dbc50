"""The sections of a version: its engine, its workers, and workers that someone else runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from inferd.config.money import Prices
from inferd.config.section import CHECKSUM, URL, VARIABLE, Folder, Name, Seconds, Section, Tokens
from inferd.config.variants import Adapter, Lora, Split, Takes
from inferd.config.watchdog import Watchdog


class EngineOptions(Section):
    """How SGLang is started for one version."""

    model_config = ConfigDict(json_schema_extra={"reload": "drain"})

    device: Literal["cuda", "cpu"] = Field("cuda", description="what its workers compute on")
    tensor_parallel: int = Field(1, ge=1, le=8, description="GPUs of one worker")
    running_max: int = Field(256, ge=1, le=4_096, description="requests decoded together")
    queued_max: int = Field(64, ge=1, le=65_536, description="the engine's own queue")
    chunked_prefill_tokens: int | None = Field(
        None,
        ge=16,
        le=65_536,
        description="prefill tokens per step; bounds time per output token; unset: the engine's",
    )
    kv_tokens_max: int | None = Field(
        None,
        ge=256,
        le=1_000_000_000,
        description="KV cache size in tokens; unset: the engine decides from memory",
    )
    stream_interval: int = Field(1, ge=1, le=64, description="tokens per streamed event")
    tool_call_parser: Name | None = Field(
        None, description="how the model writes tool calls, by SGLang's name; unset: it writes none"
    )
    reasoning_parser: Name | None = Field(
        None,
        description="how the model marks its reasoning, by SGLang's name; unset: it marks none",
    )
    kv_dtype: Name | None = Field(
        None, description="form of the KV cache, by SGLang's name; unset: the weights' own"
    )
    quantization: Name | None = Field(
        None, description="form of the weights, by SGLang's name; unset: as their folder says"
    )
    lora: Lora | None = Field(None, description="keeps LoRA adapters; unset: none can be served")
    threads: int = Field(1, ge=1, le=256, description="CPU threads of the engine (OMP_NUM_THREADS)")
    extra_args: tuple[str, ...] = Field((), description="passed to the engine as they are")
    env: dict[str, str] = Field(default_factory=dict, description="added to its environment")


class Workers(Section):
    """How many workers of a version inferd runs, and how it treats them."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    count: int = Field(
        1, ge=0, le=64, description="workers inferd starts and keeps up; 0 for a version of others"
    )
    load_stall_s: Seconds = Field(
        300.0, description="a starting worker that shows no progress this long has failed"
    )
    drain_s: Seconds = Field(60.0, description="streams may finish this long when draining")
    restart_backoff_s: Seconds = Field(1.0, description="first wait before a restart; doubles")
    restart_backoff_s_max: Seconds = Field(60.0, description="longest wait before a restart")
    restarts_per_hour_max: int = Field(
        10, ge=0, le=1_000, description="more than this and the worker stays FAILED"
    )
    log_bytes_max: int = Field(
        16_777_216, ge=65_536, le=1_073_741_824, description="output kept per worker"
    )


class AttachedWorker(Section):
    """A worker that someone else runs: probed, used and shown, never started nor killed."""

    model_config = ConfigDict(json_schema_extra={"reload": "drain"})

    url: str = Field(pattern=URL, max_length=1_024, description="http://host:port")
    key_env: str | None = Field(
        None, pattern=VARIABLE, description="environment variable that holds its API key"
    )
    inflight_max: int = Field(256, ge=1, le=65_536, description="requests sent at one time")
    model: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        None, description="the model name it wants, if not the public one"
    )


class Version(Section):
    """One set of weights with one engine configuration: a pool of workers."""

    model_config = ConfigDict(json_schema_extra={"reload": "drain"})

    version: Name = Field(description="its name; clients may pin it as model@version")
    weights: Folder | None = Field(None, description="model folder; relative to this file")
    checksum: str | None = Field(
        None,
        pattern=CHECKSUM,
        description="of the folder's manifest; `inferd check --checksums` compares",
    )
    cache_scope: Literal["team", "shared"] = Field(
        "team",
        description="who may find a prompt in its cache: only its team, or every team, which can"
        " then tell by the time whether another one asked the same",
        json_schema_extra={"reload": "live"},
    )
    context_tokens_max: Tokens | None = Field(
        None, description="prompt and output together; unset: the model's"
    )
    engine: EngineOptions = Field(default_factory=EngineOptions, description="how SGLang is run")
    workers: Workers = Field(
        default_factory=Workers, description="how many; none where there are no weights"
    )
    watchdog: Watchdog = Field(
        default_factory=Watchdog, description="when one of its workers is given up"
    )
    prices: Prices = Field(default_factory=Prices, description="what its tokens cost")
    attached: tuple[AttachedWorker, ...] = Field(
        (), max_length=64, description="workers run by someone else"
    )
    takes: Takes | None = Field(None, description="which requests it takes from the default")
    adapters: tuple[Adapter, ...] = Field(
        (), max_length=256, description="LoRA adapters on its weights, models of their own"
    )
    split: Split | None = Field(None, description="prefill and decode on separate workers")

    @model_validator(mode="before")
    @classmethod
    def _none_without_weights(cls, raw: Any) -> Any:  # noqa: ANN401 (whatever the file holds)
        """Without weights nothing can be started, so `workers.count` is 0 unless written."""
        if isinstance(raw, dict) and "weights" not in raw:
            workers = raw.get("workers", {})
            if isinstance(workers, dict) and "count" not in workers:
                return {**raw, "workers": {**workers, "count": 0}}
        return raw
