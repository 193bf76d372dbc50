"""What a worker's chat answer becomes for a client: OpenAI's shape, nothing of the engine's.

Pure functions on decoded JSON. The engine's extras (`matched_stop`, `metadata`, nulls) go; keys
that OpenAI clients rely on (`refusal`, `annotations`, usage details) come.
"""

from __future__ import annotations

from typing import Any, Final

from inferd.errors import UpstreamError, WorkerFailedMidStream
from inferd.inference import InferenceRequest, Usage

FINISH_REASONS: Final = frozenset({"stop", "length", "tool_calls", "content_filter"})


def usage_of(counts: dict[str, Any]) -> Usage:
    """The engine's usage object as ours; absent or null counts are 0."""
    prompt_details = counts.get("prompt_tokens_details") or {}
    completion_details = counts.get("completion_tokens_details") or {}
    return Usage(
        prompt_tokens=counts.get("prompt_tokens") or 0,
        cached_tokens=prompt_details.get("cached_tokens") or 0,
        completion_tokens=counts.get("completion_tokens") or 0,
        reasoning_tokens=completion_details.get("reasoning_tokens")
        or counts.get("reasoning_tokens")
        or 0,
    )


def usage_body(usage: Usage) -> dict[str, Any]:
    """Our usage as clients see it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def finish_reason_of(reason: object) -> str:
    """The engine's finish reason in OpenAI's words.

    Raises:
        WorkerFailedMidStream: `abort`: the engine gave the request up; nobody here asked it to.
    """
    if reason == "abort":
        raise WorkerFailedMidStream("The worker aborted the request before its answer was whole.")
    return reason if isinstance(reason, str) and reason in FINISH_REASONS else "stop"


def chat_answer(
    engine: dict[str, Any], request: InferenceRequest, response_id: str
) -> tuple[dict[str, Any], Usage]:
    """A whole chat completion, normalised, and its usage.

    Raises:
        UpstreamError: no choices in it, or a choice that the engine aborted.
    """
    choices = engine.get("choices")
    if not isinstance(choices, list) or not choices:
        raise UpstreamError("The worker's answer holds no choices.")
    usage = usage_of(engine.get("usage") or {})
    body = {
        "id": response_id,
        "object": "chat.completion",
        "created": engine.get("created"),
        "model": request.model,
        "choices": [_choice(choice, one_tool_call=request.one_tool_call) for choice in choices],
        "usage": usage_body(usage),
        "service_tier": request.service_tier or "default",
        "system_fingerprint": None,
    }
    if request.metadata:
        body["metadata"] = request.metadata
    return body, usage


def _choice(choice: dict[str, Any], *, one_tool_call: bool) -> dict[str, Any]:
    message = choice.get("message") or {}
    out: dict[str, Any] = {
        "role": "assistant",
        "content": message.get("content"),
        "refusal": message.get("refusal"),
        "annotations": message.get("annotations") or [],
    }
    for key in ("tool_calls", "reasoning_content"):
        if message.get(key):
            out[key] = message[key]
    if one_tool_call and "tool_calls" in out:
        del out["tool_calls"][1:]
    return {
        "index": choice.get("index", 0),
        "message": out,
        "logprobs": choice.get("logprobs"),
        "finish_reason": finish_reason_of(choice.get("finish_reason")),
    }
