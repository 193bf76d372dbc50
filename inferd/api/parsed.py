"""What every JSON endpoint does with a body: one pass over its tables, then a `ParsedRequest`.

Pure. `null` is the same as absent, except where a value is required. What reaches the engine is
built from checked values only, so a key given twice or a field of its own never does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import orjson

from inferd.api.fields import Rule, combination, integer, missing, shown, text, type_name, unknown
from inferd.config.sampling_defaults import Extra
from inferd.errors import ContextLengthExceeded, InvalidBody, UnsupportedFeature
from inferd.inference import ModelLimits, Priority

MODEL_CHARS_MAX: Final = 256
TOKEN_BYTES_MAX: Final = 512
"""No tokenizer has longer tokens, so a prompt of N bytes has at least N / 512 of them. Only what is
certain is refused here; the engine counts the rest."""
model_name: Final = text(MODEL_CHARS_MAX)

LimitsOf = Callable[[str], ModelLimits]
"""A model's limits; raises UnknownModel or ModelNotAllowed."""


@dataclass(frozen=True, slots=True)
class Tables:
    """An endpoint's parameters: to the engine as they are, ours to act on, without effect, none."""

    honoured: Mapping[str, Rule[object]]
    gateway: Mapping[str, Rule[object]]
    accepted: Mapping[str, Rule[object]]
    refused: Mapping[str, str]

    def check(self, envelope: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Checked values: what goes to the engine, and what is ours. A value of None is dropped.

        Raises:
            RequestError: naming the parameter and what is allowed.
        """
        body: dict[str, Any] = {}
        ours: dict[str, Any] = {}
        for name, value in envelope.items():
            if (rule := self.honoured.get(name)) is not None:
                if value is not None and (checked := rule(value, name)) is not None:
                    body[name] = checked
            elif (rule := self.gateway.get(name)) is not None:
                if value is not None:
                    ours[name] = rule(value, name)
            elif (rule := self.accepted.get(name)) is not None:
                if value is not None:
                    rule(value, name)
            elif name not in self.refused:
                raise unknown(shown(name))
            elif value is not None:
                raise self._refusal(name)
        return body, ours

    def _refusal(self, name: str) -> UnsupportedFeature:
        return UnsupportedFeature(
            f"Unsupported parameter: '{name}' is not supported. {self.refused[name]}", param=name
        )


@dataclass(slots=True)  # made for every request: frozen it would take twice as long
class ParsedRequest:
    """A valid request, before anybody has queued or paid for it; never changed."""

    model: str
    """As the client wrote it: a name, an alias, or `name@version`."""
    limits: ModelLimits
    body: dict[str, Any]
    """The engine's payload without `model`, `stream`, `stream_options`, `n`, `max_tokens`,
    `priority` and `rid`, which dispatch sets."""
    prompt_bytes: int
    """UTF-8 bytes of all text of the prompt: messages and tools, or prompts, or inputs."""
    priority: Priority
    stream: bool = False
    include_usage: bool = False
    choices: int = 1
    """Sequences that the engine works on."""
    prompts: int = 1
    prompt_tokens: int = 0
    """Tokens that the client sent as ids, beside the text."""
    output_tokens_max: int = 0
    """Per choice: what the client asked for, else the endpoint's or the model's default."""
    output_tokens_given: bool = True
    """False: nobody asked for `output_tokens_max`, so it may be lowered to what the context has
    left."""
    parallel_tool_calls: bool = True
    """False: at most one tool call may reach the client."""
    service_tier: str | None = None
    """The tier that is really used, to be echoed; None if the client named none."""
    tier_wanted: bool = False
    """It asks for a tier above the default one: a higher rank, where the team has one."""
    metadata: dict[str, str] = field(default_factory=dict)
    cache_hint: str | None = None
    """The client's name for prompts that begin alike."""
    user_hash: str | None = None
    """A short hash of `safety_identifier` or `user`, for the log."""
    echo: dict[str, Any] = field(default_factory=dict)
    """What the answer repeats of the request in its endpoint's own form."""


def read_envelope(raw: bytes, resolve: LimitsOf) -> tuple[dict[str, Any], str, ModelLimits]:
    """The body without `model`, the model as it was named, and its limits.

    Raises:
        RequestError: not a JSON object, or no model that the caller may use.
    """
    try:
        envelope = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidBody(f"We could not parse the JSON body of your request: {error}.") from None
    if not isinstance(envelope, dict):
        raise not_an_object(envelope)
    if "model" not in envelope:
        raise missing("model")
    model = model_name(envelope.pop("model"), "model")
    return envelope, model, resolve(model)


def not_an_object(body: object) -> InvalidBody:
    """A whole body of another type."""
    return InvalidBody(
        f"Invalid type for the request body: expected an object, but got {type_name(body)} "
        "instead.",
        code="invalid_type",
    )


def follow_model(body: dict[str, Any], limits: ModelLimits) -> None:
    """Fill in the model's defaults, once none but its extras are there.

    Raises:
        UnsupportedFeature: the operator does not allow one.
    """
    if limits.extras is not None:
        for name in get_args(Extra):
            if name in body and name not in limits.extras:
                raise UnsupportedFeature(
                    f"Unsupported parameter: '{name}' is not allowed with the model "
                    f"'{limits.name}'.",
                    param=name,
                )
    for name, value in limits.sampling.items():
        body.setdefault(name, value)


def streaming(ours: Mapping[str, Any]) -> dict[str, Any]:
    """`stream` and `include_usage` of a ParsedRequest."""
    stream = ours.get("stream", False)
    if "stream_options" in ours and not stream:
        raise combination("'stream_options' is only allowed with 'stream': true.", "stream_options")
    return {"stream": stream, "include_usage": ours.get("stream_options", False)}


def who_asks(ours: Mapping[str, Any], priority_max: Priority) -> dict[str, Any]:
    """Priority, tier, metadata and user of a ParsedRequest.

    Batch if the request says so in either way, or if the team has no more than that.
    """
    asked_batch = ours.get("priority") == "batch" or ours.get("service_tier") == "flex"
    priority = Priority.BATCH if asked_batch else priority_max
    tier = "flex" if priority is Priority.BATCH else "default"
    identity = ours.get("safety_identifier") or ours.get("user")
    return {
        "priority": priority,
        "service_tier": tier if "service_tier" in ours else None,
        "tier_wanted": tier == "default" and ours.get("service_tier") in {"priority", "fast"},
        "metadata": ours.get("metadata", {}),
        "user_hash": hashlib.sha256(identity.encode()).hexdigest()[:16] if identity else None,
    }


def choices_of(ours: Mapping[str, Any], limits: ModelLimits) -> int:
    return integer(1, limits.choices_max)(ours.get("n", 1), "n")


def check_fits(size: int, limits: ModelLimits, param: str, what: str, prompts: int = 1) -> None:
    """Refuse text of `size` bytes that surely has more tokens than the model's context.

    Raises:
        ContextLengthExceeded
    """
    if size > limits.context_tokens_max * TOKEN_BYTES_MAX * prompts:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {limits.context_tokens_max} tokens. Your "
            f"{what} hold {size} bytes of text, more than can fit. Please reduce their length.",
            param=param,
        )
