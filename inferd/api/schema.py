"""A chat completion's body bytes -> `ParsedRequest`: every parameter honoured, accepted or refused.

Pure. One pass over the body with the tables of `parameters.py`, then the rules that join several
parameters.
"""

from __future__ import annotations

from typing import Any, Final

from inferd.api.fields import combination, integer, missing
from inferd.api.parameters import TABLES
from inferd.api.parsed import (
    LimitsOf,
    ParsedRequest,
    check_fits,
    choices_of,
    follow_model,
    read_envelope,
    streaming,
    who_asks,
)
from inferd.api.tools import Choice, Tools, apply
from inferd.api.vocabulary import check_stop_tokens
from inferd.errors import UnsupportedFeature
from inferd.inference import ModelLimits, Priority

_CONSTRAINTS: Final = ("response_format", "regex", "ebnf")


def parse_chat(
    raw: bytes,
    resolve: LimitsOf,
    priority_max: Priority = Priority.INTERACTIVE,
) -> ParsedRequest:
    """Parse and validate a body.

    `resolve` gives a model's limits, or raises UnknownModel or ModelNotAllowed. `priority_max` is
    the highest priority the team's requests may have; asking for more is not an error.

    Raises:
        RequestError: naming the parameter and what is allowed; nothing else is ever raised here.
    """
    envelope, model, limits = read_envelope(raw, resolve)
    body, ours = TABLES.check(envelope)
    if "messages" not in ours:
        raise missing("messages")
    body["messages"] = envelope["messages"]
    return join_chat(model, limits, body, ours, priority_max)


def join_chat(
    model: str,
    limits: ModelLimits,
    body: dict[str, Any],
    ours: dict[str, Any],
    priority_max: Priority,
) -> ParsedRequest:
    """The rules between parameters, and what the gateway itself needs to know.

    `ours["messages"]` is the conversation's bytes of text, the conversation itself is in `body`.

    Raises:
        RequestError: two parameters do not go together, or a model's limit is exceeded.
    """
    streams = streaming(ours)
    follow_model(body, limits)
    if "top_logprobs" in body and not body.get("logprobs"):
        raise combination("'top_logprobs' is only allowed with 'logprobs': true.", "top_logprobs")
    output_tokens_max = _output_tokens_max(ours, limits)
    if body.get("min_tokens", 0) > (output_tokens_max or _default(limits)):
        raise combination("'min_tokens' is more than the output may have.", "min_tokens")
    check_stop_tokens(body, limits)
    prompt_bytes = ours["messages"] + _join_tools(body, ours)
    _join_effort(body, ours, limits)
    _check_continuation(body)
    check_fits(prompt_bytes, limits, "messages", "'messages' and 'tools'")
    return ParsedRequest(
        model=model,
        limits=limits,
        body=body,
        choices=choices_of(ours, limits),
        output_tokens_max=output_tokens_max or _default(limits),
        output_tokens_given=output_tokens_max is not None,
        prompt_bytes=prompt_bytes,
        parallel_tool_calls=ours.get("parallel_tool_calls", True),
        cache_hint=ours.get("prompt_cache_key"),
        **streams,
        **who_asks(ours, priority_max),
    )


def _default(limits: ModelLimits) -> int:
    return limits.output_tokens_default or limits.output_tokens_max


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
