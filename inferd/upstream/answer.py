"""What a worker's chat answer becomes for a client: OpenAI's shape, nothing of the engine's.

Pure functions on decoded JSON. The engine's extras (`matched_stop`, `metadata`, nulls) go; keys
that OpenAI clients rely on (`refusal`, `annotations`, usage details) come.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from inferd.errors import InvalidAnswer, WorkerUnreachable
from inferd.inference import InferenceRequest, Usage

FINISH_REASONS: Final = frozenset({"stop", "length", "tool_calls", "content_filter"})
BYTES_PER_TOKEN: Final = 3.5
BYTES_PER_TOKEN_MIN: Final = 2.0
TOKENS_MAX: Final = 1_000_000_000_000
"""No answer has so many tokens: a larger count is none."""


def usage_of(counts: dict[str, Any]) -> Usage:
    """The engine's usage object as ours; counts that are absent, null or no counts are 0.

    A part is never more than what it is a part of.
    """
    prompt, completion = _count(counts, "prompt_tokens"), _count(counts, "completion_tokens")
    cached = _count(counts.get("prompt_tokens_details"), "cached_tokens")
    reasoning = _count(counts.get("completion_tokens_details"), "reasoning_tokens")
    reasoning = reasoning or _count(counts, "reasoning_tokens")
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=min(cached, prompt),
        completion_tokens=completion,
        reasoning_tokens=min(reasoning, completion),
    )


def _count(counts: object, name: str) -> int:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if type(value) is int and 0 <= value <= TOKENS_MAX else 0


def choices_of(engine: dict[str, Any], part: str, choices: int) -> list[dict[str, Any]]:
    """The choices of an answer or event, each with its `part` (`message`, `delta`) an object.

    Raises:
        InvalidAnswer: something in there has another type, or an index that was not asked for.
    """
    found = engine.get("choices") or []
    if not isinstance(found, list):
        raise misshapen()
    for choice in found:
        if not isinstance(choice, dict):
            raise misshapen()
        content = choice.get(part) or {}
        index = choice.get("index", 0)
        if not isinstance(content, dict) or type(index) is not int or not 0 <= index < choices:
            raise misshapen()
        calls = content.get("tool_calls") or []
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise misshapen()
        choice[part] = content
        choice["index"] = index
    return found


def misshapen() -> InvalidAnswer:
    return InvalidAnswer("The worker's answer is not in the form of its endpoint.")


def usage_body(usage: Usage) -> dict[str, Any]:
    """Our usage as clients see it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "audio_tokens": 0,
            "cache_write_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def finish_reason_of(reason: object, *, named: bool = False) -> str:
    """The engine's finish reason in OpenAI's words.

    A function that the client named is no choice of the model's: with it an answer just stops.

    Raises:
        WorkerUnreachable: `abort`: the engine gave the request up; nobody here asked it to.
    """
    if reason == "abort":
        raise WorkerUnreachable("The worker aborted the request before its answer was whole.")
    if named and reason == "tool_calls":
        return "stop"
    return reason if isinstance(reason, str) and reason in FINISH_REASONS else "stop"


def chat_answer(
    engine: dict[str, Any], request: InferenceRequest, response_id: str
) -> tuple[dict[str, Any], Usage]:
    """A whole chat completion, normalised, and its usage.

    Raises:
        InvalidAnswer: no choices in it. WorkerUnreachable: one that the engine aborted.
    """
    choices = choices_of(engine, "message", request.choices)
    if not choices:
        raise InvalidAnswer("The worker's answer holds no choices.")
    texts = [text for choice in choices for text in texts_of(choice["message"])]
    usage = usage_or_estimate(engine, request, texts)
    body = {
        "id": response_id,
        "object": "chat.completion",
        "created": engine.get("created"),
        "model": request.model,
        "choices": [_choice(choice, request) for choice in choices],
        "usage": usage_body(usage),
        "service_tier": tier_of(request),
        "system_fingerprint": None,
    }
    if request.metadata:
        body["metadata"] = request.metadata
    return body, usage


def usage_or_estimate(engine: dict[str, Any], request: InferenceRequest, texts: list[str]) -> Usage:
    """What the engine counted, or where it did not: estimated from bytes, as its prompt was."""
    counts = engine.get("usage")
    told = usage_of(counts if isinstance(counts, dict) else {})
    if told.prompt_tokens and (told.completion_tokens or not texts):
        return told
    text_bytes = sum(len(text.encode("utf-8", "replace")) for text in texts)
    tokens_max = request.output_tokens_max * request.choices
    return replace(
        told,
        prompt_tokens=told.prompt_tokens or request.prompt_tokens_estimated,
        completion_tokens=told.completion_tokens
        or min(tokens_of(text_bytes, bytes_per_token(request)), tokens_max),
        estimated=True,
    )


def bytes_per_token(request: InferenceRequest) -> float:
    """Of what the model writes, as its prompt was estimated."""
    if not request.prompt_bytes:
        return BYTES_PER_TOKEN  # the prompt came as ids
    ratio = request.prompt_bytes / max(1, request.prompt_tokens_estimated)
    return max(BYTES_PER_TOKEN_MIN, ratio)  # a short prompt that was counted is mostly its template


def tokens_of(text_bytes: int, bytes_per_token: float) -> int:
    return math.ceil(text_bytes / bytes_per_token)


def texts_of(message: dict[str, Any]) -> Iterator[str]:
    """Everything in a message that the engine has written."""
    functions = [call.get("function") for call in message.get("tool_calls") or ()]
    calls = [call.get("arguments") for call in functions if isinstance(call, dict)]
    for text in (message.get("content"), message.get("reasoning_content"), *calls):
        if isinstance(text, str) and text:
            yield text


def tier_of(request: InferenceRequest) -> str:
    """The tier that was really used."""
    return request.service_tier or "default"


def names_a_tool(request: InferenceRequest) -> bool:
    return isinstance(request.body.get("tool_choice"), dict)


def _choice(choice: dict[str, Any], request: InferenceRequest) -> dict[str, Any]:
    message = choice["message"]
    out: dict[str, Any] = {
        "role": "assistant",
        "content": message.get("content"),
        "refusal": message.get("refusal"),
        "annotations": message.get("annotations") or [],
    }
    for key in ("tool_calls", "reasoning_content"):
        if message.get(key):
            out[key] = message[key]
    if "tool_calls" in out:
        out["content"] = out["content"] or None
        if request.one_tool_call:
            del out["tool_calls"][1:]
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict):
        logprobs.setdefault("refusal", None)
    finish_reason = choice.get("finish_reason")
    return {
        "index": choice["index"],
        "message": out,
        "logprobs": logprobs,
        "finish_reason": finish_reason_of(finish_reason, named=names_a_tool(request)),
    }
