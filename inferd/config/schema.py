"""The frozen models of inferd.toml from its root. Cross-field checks are in `checks.py`.

Durations are seconds as floats, the unit in the name. Each section says in its json_schema_extra
what a change of it needs: `live`, `drain` or `restart`; a key may say otherwise for itself.
Nothing here reads a file or the environment; secrets are named by `*_env` and looked up by whoever
needs them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, model_validator

from inferd.config.batches import Batches
from inferd.config.files import Files
from inferd.config.limits import LimitsOnModel
from inferd.config.money import Billing, Budget
from inferd.config.recording import Recording
from inferd.config.sampling_defaults import Extra, SamplingDefaults
from inferd.config.section import ORIGIN, Folder, ModelName, Name, Seconds, Section, Tokens
from inferd.config.tracing import Tracing
from inferd.config.version import Version


class Server(Section):
    """Where inferd listens and what it accepts."""

    model_config = ConfigDict(json_schema_extra={"reload": "restart"})

    listen: str = Field(
        "127.0.0.1:8080", description="address:port of the public API; port 0 takes any free one"
    )
    admin_listen: str = Field("127.0.0.1:8081", description="loopback address:port for admins")
    state_dir: Folder = Field(
        ".inferd/state",
        description="database, admin key, worker logs; relative to this file's folder",
    )
    body_bytes_max: int = Field(
        4_194_304, ge=1_024, le=1_073_741_824, description="largest request body"
    )
    body_timeout_s: Seconds = Field(
        30.0, description="to receive a request's headers, and its body"
    )
    connections_max: int = Field(10_000, ge=1, le=1_000_000, description="open client connections")
    request_deadline_s: Seconds = Field(590.0, description="from arrival to the last byte")
    stall_s: Seconds = Field(30.0, description="a client that accepts nothing this long is cut off")
    unready_s: float = Field(
        1.0, ge=0, le=600, description="after SIGTERM, /readyz says 503 this long before we close"
    )
    cors_origins: tuple[Annotated[str, Field(pattern=ORIGIN, max_length=256)], ...] = Field(
        (), max_length=64, description="web pages whose scripts may call the API; none by default"
    )
    keep_workers: bool = Field(
        default=False,
        description="leave the engines running at exit; the next start takes them over",
        json_schema_extra={"reload": "live"},
    )
    shutdown_grace_s: Seconds = Field(60.0, description="running streams may finish this long")


class Engine(Section):
    """Where the engine's own environment is."""

    model_config = ConfigDict(json_schema_extra={"reload": "restart"})

    environment: Folder = Field(
        ".inferd/engine", description="made by `inferd engine install`; relative to this file"
    )


class Targets(Section):
    """What users of a model may expect; counted as met or missed in the metrics."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    ttft_ms: int = Field(
        800, ge=1, le=3_600_000, description="first token, prompts up to 4,096 tokens"
    )
    tpot_ms: int = Field(40, ge=1, le=3_600_000, description="mean time per output token")


class Queue(Section):
    """Bounds of a pool's fair queue."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    waiting_max: int = Field(256, ge=1, le=100_000, description="requests waiting per pool")
    waiting_per_team_max: int = Field(
        128, ge=1, le=100_000, description="requests of one team waiting per pool"
    )
    wait_s_max: Seconds = Field(30.0, description="a request that waited this long gets a 429")
    refuse_late: bool = Field(
        default=True,
        description="429 as soon as no worker can give the first token within targets.ttft_ms;"
        " with predicted_ttft only",
    )
    batch_utilization_max: float = Field(
        0.6, gt=0, le=1, description="a busier worker is given no batch work"
    )


class Model(Section):
    """A public name and the versions behind it."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    name: ModelName = Field(description="what clients write as `model`")
    aliases: tuple[ModelName, ...] = Field((), max_length=64, description="other names for it")
    kind: Literal["chat", "embedding"] = Field(
        "chat",
        description="what its workers do: write text, or embed it",
        json_schema_extra={"reload": "drain"},
    )
    default_version: Name = Field(description="who asks for no version gets this one")
    context_tokens_max: Tokens = Field(
        description="prompt and output together", json_schema_extra={"reload": "drain"}
    )
    output_tokens_max: Tokens = Field(
        description="largest and default max_tokens of a request; not for embeddings"
    )
    choices_max: int = Field(8, ge=1, le=128, description="largest n a request may ask for")
    reasoning: bool = Field(default=False, description="takes reasoning_effort")
    dimensions: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] = Field(
        (),
        max_length=64,
        description="sizes that requests may ask of an embedding; unset: only its own",
        json_schema_extra={"reload": "drain"},
    )
    vocabulary_tokens: int | None = Field(
        None,
        ge=1,
        le=2_147_483_648,
        description="`vocab_size` of its config.json; unset: prompts of token ids are refused",
    )
    extras: tuple[Extra, ...] | None = Field(
        None,
        max_length=16,
        description="parameters of the engine's own that requests may use; unset: all of them",
    )
    defaults: SamplingDefaults = Field(
        default_factory=SamplingDefaults, description="for requests that do not say"
    )
    targets: Targets = Field(default_factory=Targets, description="what users may expect")
    queue: Queue = Field(default_factory=Queue, description="bounds of each of its queues")
    placement: Literal["predicted_ttft", "bounded_hash", "least_tokens", "round_robin"] = Field(
        "predicted_ttft", description="how the worker of a request is chosen"
    )
    versions: tuple[Version, ...] = Field(
        min_length=1, max_length=64, description="sets of weights, each a pool of workers"
    )

    @model_validator(mode="before")
    @classmethod
    def _writes_nothing(cls, raw: Any) -> Any:  # noqa: ANN401 (whatever the file holds)
        """A model that embeds has no output: `output_tokens_max` is left out."""
        if isinstance(raw, dict) and raw.get("kind") == "embedding":
            return {"output_tokens_max": 1, **raw}
        return raw


class Team(Section):
    """Who uses and pays. Keys are made with `inferd keys create`."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    name: Name = Field(description="who pays; `system` is taken by inferd itself")
    models: tuple[ModelName, ...] | None = Field(
        None, description="names or aliases it may use; unset: every model"
    )
    weight: int = Field(1, ge=1, le=1_000, description="share of a pool under contention")
    tokens_per_s: Tokens | None = Field(None, description="refill of the token bucket")
    burst_tokens: int | None = Field(
        None, ge=1, le=1_000_000_000_000, description="size of the token bucket"
    )
    requests_per_s: float | None = Field(
        None, gt=0, le=1_000_000, description="refill of the request bucket"
    )
    burst_requests: int | None = Field(
        None, ge=1, le=100_000_000, description="size of the request bucket"
    )
    rank: int = Field(
        0, ge=-100, le=100, description="under overload, requests of lower ranks are refused first"
    )
    priority_tier_rank: int | None = Field(
        None,
        ge=-100,
        le=100,
        description="rank of requests with service_tier priority or fast; unset: as any other",
    )
    priority_max: Literal["interactive", "batch"] = Field(
        "interactive", description="the highest priority the team's requests may have"
    )
    limits: tuple[LimitsOnModel, ...] = Field(
        (), max_length=256, description="its limits on single models, beside those on all"
    )
    files_bytes_max: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000_000_000,
        description="all its files together; unset: files.team_bytes_max",
    )
    budget: Budget | None = Field(None, description="what it may use in a month")
    recording: Recording | None = Field(
        None, description="keep what it asks and is answered; unset: no text is kept"
    )


class Logs(Section):
    """JSON lines on standard error."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="the least severe records that are written"
    )


class Config(Section):
    """The whole of inferd.toml."""

    server: Server = Field(default_factory=Server, description="listeners and request limits")
    engine: Engine = Field(default_factory=Engine, description="the engine's own environment")
    files: Files = Field(default_factory=Files, description="where files are kept, how much")
    logs: Logs = Field(default_factory=Logs, description="JSON lines on standard error")
    tracing: Tracing = Field(default_factory=Tracing, description="where spans go")
    billing: Billing = Field(default_factory=Billing, description="currency, ledger's keeping")
    models: tuple[Model, ...] = Field(
        min_length=1, max_length=256, description="what is served, by public name"
    )
    batches: Batches = Field(default_factory=Batches, description="bounds of batch work")
    teams: tuple[Team, ...] = Field((), max_length=10_000, description="who uses and pays")


def section_in(annotation: Any) -> type[Section] | None:  # noqa: ANN401 (any type expression)
    """The section that a field holds, alone, optional or in an array; None for plain values."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_in(part))), None)


def section_at(path: tuple[str | int, ...]) -> type[Section] | None:
    """The section whose keys stand at a config path; None where there is none."""
    section: type[Section] | None = Config
    for part in path:
        if isinstance(part, int):
            continue
        field = section.model_fields.get(part) if section else None
        section = section_in(field.annotation) if field else None
    return section
