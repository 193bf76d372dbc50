"""A chat completion's body bytes -> `ParsedChat`: every parameter honoured, accepted or refused.

Pure. One pass over the body with the tables of `parameters.py`, then the rules that join several
parameters. `null` is the same as absent, except where a value is required. What reaches the engine
is built from checked values only, so a key given twice or a field of its own never does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from inferd.api.fields import combination, integer, missing, shown, text, type_name, unknown
from inferd.api.parameters import ACCEPTED, GATEWAY, HONOURED, REFUSED, refuse
from inferd.api.tools import Choice, Tools, apply
from inferd.errors import ContextLengthExceeded, InvalidBody, UnsupportedFeature
from inferd.inference import ModelLimits, Priority

MODEL_CHARS_MAX: Final = 256
TOKEN_BYTES_MAX: Final = 512
"""No tokenizer has longer tokens, so a prompt of N bytes has at least N / 512 of them. Only what is
certain is refused here; the engine counts the rest."""
_CONSTRAINTS: Final = ("response_format", "regex", "ebnf")
_model = text(MODEL_CHARS_MAX)


@dataclass(frozen=True, slots=True)
class ParsedChat:
    """A valid request for a chat completion, before anybody has queued or paid for it."""

    model: str
    """As the client wrote it: a name, an alias, or `name@version`."""
    limits: ModelLimits
    body: dict[str, Any]
    """The engine's payload without `model`, `stream`, `stream_options`, `n`, `max_tokens`,
    `priority` and `rid`, which dispatch sets."""
    stream: bool
    include_usage: bool
    choices: int
    output_tokens_max: int
    """Per choice: what the client asked for, else the model's limit."""
    output_tokens_given: bool
    """False: nobody asked for `output_tokens_max`, so it may be lowered to what the context has
    left."""
    prompt_bytes: int
    """UTF-8 bytes of all text in messages and tools."""
    parallel_tool_calls: bool
    """False: at most one tool call may reach the client."""
    priority: Priority
    service_tier: str | None
    """The tier that is really used, to be echoed; None if the client named none."""
    metadata: dict[str, str] = field(default_factory=dict)
    user_hash: str | None = None
    """A short hash of `safety_identifier` or `user`, for the log."""


def parse_chat(
    raw: bytes,
    resolve: Callable[[str], ModelLimits],
    *,
    priority_max: Priority = Priority.INTERACTIVE,
) -> ParsedChat:
    """Parse and validate a body.

    `resolve` gives a model's limits, or raises UnknownModel or ModelNotAllowed. `priority_max` is
    the highest priority the team's requests may have; asking for more is not an error.

    Raises:
        RequestError: naming the parameter and what is allowed; nothing else is ever raised here.
    """
    envelope = _envelope(raw)
    if "model" not in envelope:
        raise missing("model")
    model = _model(envelope.pop("model"), "model")
    limits = resolve(model)
    body: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    for name, value in envelope.items():
        if name in HONOURED:
            if value is not None and (checked := HONOURED[name](value, name)) is not None:
                body[name] = checked
        elif name in GATEWAY:
            if value is not None:
                ours[name] = GATEWAY[name](value, name)
        elif name in ACCEPTED:
            if value is not None:
                ACCEPTED[name](value, name)
        elif name not in REFUSED:
            raise unknown(shown(name))
        elif value is not None:
            raise refuse(name)
    if "messages" not in ours:
        raise missing("messages")
    body["messages"] = envelope["messages"]
    return _join(model, limits, body, ours, priority_max)


def _envelope(raw: bytes) -> dict[str, Any]:
    try:
        envelope = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidBody(f"We could not parse the JSON body of your request: {error}.") from None
    if not isinstance(envelope, dict):
        raise InvalidBody(
            f"Invalid type for the request body: expected an object, but got {type_name(envelope)} "
            "instead.",
            code="invalid_type",
        )
    return envelope


def _join(
    model: str,
    limits: ModelLimits,
    body: dict[str, Any],
    ours: dict[str, Any],
    priority_max: Priority,
) -> ParsedChat:
    """The rules between parameters, and what the gateway itself needs to know."""
    stream = ours.get("stream", False)
    if "stream_options" in ours and not stream:
        raise combination("'stream_options' is only allowed with 'stream': true.", "stream_options")
    if "top_logprobs" in body and not body.get("logprobs"):
        raise combination("'top_logprobs' is only allowed with 'logprobs': true.", "top_logprobs")
    output_tokens_max = _output_tokens_max(ours, limits)
    if body.get("min_tokens", 0) > (output_tokens_max or limits.output_tokens_max):
        raise combination("'min_tokens' is more than the output may have.", "min_tokens")
    prompt_bytes = ours["messages"] + _join_tools(body, ours)
    _join_effort(body, ours, limits)
    _check_continuation(body)
    if prompt_bytes > limits.context_tokens_max * TOKEN_BYTES_MAX:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {limits.context_tokens_max} tokens. Your "
            f"'messages' and 'tools' hold {prompt_bytes} bytes of text, more than can fit. "
            "Please reduce their length.",
            param="messages",
        )
    priority = _priority(ours, priority_max)
    identity = ours.get("safety_identifier") or ours.get("user")
    return ParsedChat(
        model=model,
        limits=limits,
        body=body,
        stream=stream,
        include_usage=ours.get("stream_options", False),
        choices=integer(1, limits.choices_max)(ours.get("n", 1), "n"),
        output_tokens_max=output_tokens_max or limits.output_tokens_max,
        output_tokens_given=output_tokens_max is not None,
        prompt_bytes=prompt_bytes,
        parallel_tool_calls=ours.get("parallel_tool_calls", True),
        priority=priority,
        service_tier=_service_tier(ours, priority),
        metadata=ours.get("metadata", {}),
        user_hash=hashlib.sha256(identity.encode()).hexdigest()[:16] if identity else None,
    )


def _output_tokens_max(ours: dict[str, Any], limits: ModelLimits) -> int | None:
    given = [name for name in ("max_completion_tokens", "max_tokens") if name in ours]
    if not given:
        return None
    if len(given) > 1:
        raise combination(
            "'max_tokens' and 'max_completion_tokens' cannot be used together. "
            "Use 'max_completion_tokens'.",
            "max_tokens",
        )
    return integer(1, limits.output_tokens_max)(ours[given[0]], given[0])


def _join_tools(body: dict[str, Any], ours: dict[str, Any]) -> int:
    """Put the tools into the body; the bytes they add to the prompt."""
    tools: Tools = ours.get("tools") or Tools()
    choice: Choice | None = ours.get("tool_choice")
    size = apply(tools, choice, body)
    constraints = [name for name in _CONSTRAINTS if name in body]
    if len(constraints) > 1:
        raise combination(
            f"'{constraints[0]}' and '{constraints[1]}' cannot be used together: an answer can "
            "follow one grammar.",
            constraints[1],
        )
    if "tools" not in body:
        return 0
    if constraints and body["tool_choice"] != "none":
        # The engine would apply the grammar to the whole answer and never call a tool.
        raise combination(
            f"'{constraints[0]}' and 'tools' cannot be used together: with the answer bound to a "
            "grammar no tool could be called. Send 'tool_choice': 'none', or leave one out.",
            constraints[0],
        )
    named = choice is not None and choice.named is not None
    body["parallel_tool_calls"] = ours.get("parallel_tool_calls", not named)
    return size


def _join_effort(body: dict[str, Any], ours: dict[str, Any], limits: ModelLimits) -> None:
    effort = ours.get("reasoning_effort")
    if effort is None:
        return
    if limits.reasoning:
        body["reasoning_effort"] = effort
    elif effort != "none":
        raise UnsupportedFeature(
            f"Unsupported value: 'reasoning_effort' does not support '{effort}' with this model, "
            "which does not reason. Supported values are: 'none'.",
            code="unsupported_value",
            param="reasoning_effort",
        )


def _check_continuation(body: dict[str, Any]) -> None:
    if not body.get("continue_final_message"):
        return
    last = body["messages"][-1]
    if last["role"] != "assistant" or not isinstance(last["content"], str):
        raise combination(
            "'continue_final_message' needs a last message with role 'assistant' and a text.",
            "continue_final_message",
        )


def _priority(ours: dict[str, Any], priority_max: Priority) -> Priority:
    """Batch if the request says so in either way, or if the team has no more than that."""
    asked_batch = ours.get("priority") == "batch" or ours.get("service_tier") == "flex"
    return Priority.BATCH if asked_batch else priority_max


def _service_tier(ours: dict[str, Any], priority: Priority) -> str | None:
    if "service_tier" not in ours:
        return None
    return "flex" if priority is Priority.BATCH else "default"
