"""What a worker's plain completion becomes for a client, whole or streamed.

Pure but for one stream's offsets. The engine leaves `text_offset` at -1: it is counted here, in
characters of the choice's `text`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferd.errors import InvalidAnswer
from inferd.upstream.answer import finish_reason_of, misshapen, usage_body, usage_or_estimate
from inferd.upstream.relay import StreamRelay

if TYPE_CHECKING:
    from inferd.inference import InferenceRequest, Usage


def text_answer(
    engine: dict[str, Any], request: InferenceRequest, response_id: str
) -> tuple[dict[str, Any], Usage]:
    """A whole completion, normalised, and its usage.

    Raises:
        InvalidAnswer: no choices in it. WorkerUnreachable: one that the engine aborted.
    """
    choices = text_choices_of(engine, request.choices)
    if not choices:
        raise InvalidAnswer("The worker's answer holds no choices.")
    usage = usage_or_estimate(engine, request, [choice["text"] for choice in choices])
    body = {
        "id": response_id,
        "object": "text_completion",
        "created": engine.get("created"),
        "model": request.model,
        "choices": [_choice(choice) for choice in choices],
        "usage": usage_body(usage),
        "system_fingerprint": None,
    }
    return body, usage


def text_choices_of(engine: dict[str, Any], choices: int) -> list[dict[str, Any]]:
    """The choices of an answer or event, each with a text and an index.

    Raises:
        InvalidAnswer: something in there has another type, or an index that was not asked for.
    """
    found = engine.get("choices") or []
    if not isinstance(found, list):
        raise misshapen()
    for choice in found:
        if not isinstance(choice, dict):
            raise misshapen()
        text, index = choice.get("text") or "", choice.get("index", 0)
        logprobs = choice.get("logprobs")
        if not isinstance(text, str) or type(index) is not int or not 0 <= index < choices:
            raise misshapen()
        if logprobs is not None and not _are_logprobs(logprobs):
            raise misshapen()
        choice.update(text=text, index=index, logprobs=logprobs)
    return found


def _are_logprobs(value: object) -> bool:
    tokens = value.get("tokens") if isinstance(value, dict) else None
    return isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    logprobs = choice.get("logprobs")
    if logprobs:
        count_offsets(logprobs, 0)
    return {
        "index": choice["index"],
        "text": choice["text"],
        "logprobs": logprobs,
        "finish_reason": finish_reason_of(choice.get("finish_reason")),
    }


def count_offsets(logprobs: dict[str, Any], offset: int) -> int:
    """Write `text_offset`, beginning at `offset`; where the next token begins."""
    offsets = []
    for token in logprobs["tokens"]:
        offsets.append(offset)
        offset += len(token)
    logprobs["text_offset"] = offsets
    tops = logprobs.get("top_logprobs")
    if not isinstance(tops, list) or not any(tops):
        logprobs["top_logprobs"] = None
    return offset


class TextRelay(StreamRelay):
    """A plain completion: the reason it ended travels with its last text."""

    __slots__ = ("_echo", "_offsets")

    object_name = "text_completion"

    def __init__(self, request: InferenceRequest, response_id: str) -> None:
        super().__init__(request, response_id)
        self._offsets: dict[int, int] = {}
        self._echo = bool(request.body.get("echo"))  # the prompt comes first: it is no output

    def _choices_of(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        return text_choices_of(event, self._choices)

    def _open(self, event: dict[str, Any]) -> bytes:
        del event
        return b""

    def _normalise(self, choice: dict[str, Any]) -> bool:
        choice.pop("matched_stop", None)
        if logprobs := choice.get("logprobs"):
            index = choice["index"]
            self._offsets[index] = count_offsets(logprobs, self._offsets.get(index, 0))
        ended = choice.get("finish_reason") is not None
        if ended:
            self._finish(choice)
        if choice["text"] or logprobs:
            self._told(() if self._echo else (choice["text"],))
            return True
        return ended
