"""What a worker's chat answer becomes for a client of the Responses API, whole or in events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import orjson

from inferd.errors import InvalidAnswer
from inferd.inference import Usage
from inferd.upstream.answer import (
    choices_of,
    finish_reason_of,
    misshapen,
    texts_of,
    tier_of,
    usage_or_estimate,
)
from inferd.upstream.frames import END
from inferd.upstream.relay import StreamRelay

if TYPE_CHECKING:
    from inferd.inference import InferenceRequest

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


def response_answer(
    engine: dict[str, Any], request: InferenceRequest, response_id: str
) -> tuple[dict[str, Any], Usage]:
    """A whole response, and its usage.

    Raises:
        InvalidAnswer: no choice in it. WorkerUnreachable: one that the engine aborted.
    """
    choices = choices_of(engine, "message", 1)
    if not choices:
        raise InvalidAnswer("The worker's answer holds no choices.")
    message = choices[0]["message"]
    usage = usage_or_estimate(engine, request, list(texts_of(message)))
    writer = Writer(request, response_id, engine.get("created"))
    part = _Part.read(message, choices[0])
    if part.reasoning:
        writer.reasoning(part.reasoning)
    if part.text or not part.calls:
        writer.text(part.text, part.logprobs)
    for call in part.calls[:1] if request.one_tool_call else part.calls:
        writer.call(call.id, call.name)
        writer.arguments(call.arguments)
    writer.end(finish_reason_of(choices[0].get("finish_reason")))
    return writer.response(usage), usage


class _Call(NamedTuple):
    number: int
    id: str
    name: str
    arguments: str


class _Part(NamedTuple):
    """What one message or delta brings, checked."""

    text: str
    reasoning: str
    calls: list[_Call]
    logprobs: list[dict[str, Any]]

    @classmethod
    def read(cls, message: dict[str, Any], choice: dict[str, Any]) -> _Part:
        """Raises: InvalidAnswer, for a value of another type."""
        logprobs = _typed(_typed(choice.get("logprobs"), dict).get("content"), list)
        return cls(
            text=_typed(message.get("content"), str),
            reasoning=_typed(message.get("reasoning_content"), str),
            calls=[_call(call) for call in _typed(message.get("tool_calls"), list)],
            logprobs=logprobs,
        )


T = TypeVar("T")


def _typed(value: object, kind: type[T]) -> T:
    """The value; an empty one for null.

    Raises:
        InvalidAnswer: it has another type.
    """
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise misshapen()
    return value


def _call(call: object) -> _Call:
    given = _typed(call, dict)
    function = _typed(given.get("function"), dict)
    return _Call(
        number=_typed(given.get("index"), int),
        id=_typed(given.get("id"), str),
        name=_typed(function.get("name"), str),
        arguments=_typed(function.get("arguments"), str),
    )


class Writer:
    """Writes one response item by item; `take` gives the events of what was written since."""

    def __init__(self, request: InferenceRequest, response_id: str, created: object) -> None:
        self._request = request
        self._id = response_id
        self._created = created if type(created) is int else 0
        self._sequence = 0
        self._events: list[bytes] = []
        self._output: list[dict[str, Any]] = []
        self._parts: list[str] = []
        self._open: str | None = None
        self._status = "in_progress"
        self._reason: str | None = None
        for kind in ("response.created", "response.in_progress"):
            self._event(kind, response=self.response(None))

    def take(self) -> bytes:
        """The events since the last call."""
        events, self._events = self._events, []
        return b"".join(events)

    def reasoning(self, text: str) -> None:
        if self._open != "reasoning":
            self._begin("reasoning", {"type": "reasoning", "summary": [], "content": []}, "rs_")
            self._part("added", {"type": "reasoning_text", "text": ""})
        self._parts.append(text)
        self._item_event("response.reasoning_text.delta", content_index=0, delta=text)

    def text(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        if self._open != "message":
            item = {"type": "message", "role": "assistant", "content": []}
            self._begin("message", item, "msg_")
            self._part("added", {"type": "output_text", "text": "", "annotations": []})
            self._logprobs: list[dict[str, Any]] = []
        self._parts.append(text)
        self._logprobs += logprobs
        self._item_event(
            "response.output_text.delta", content_index=0, delta=text, logprobs=logprobs
        )

    def call(self, call_id: str, name: str) -> None:
        item = {"type": "function_call", "call_id": call_id, "name": name, "arguments": ""}
        self._begin("function_call", item, "fc_")

    def arguments(self, text: str) -> None:
        self._parts.append(text)
        self._item_event("response.function_call_arguments.delta", delta=text)

    def end(self, finish_reason: str) -> None:
        """The answer is whole, or was cut off by a limit."""
        self._reason = _INCOMPLETE.get(finish_reason)
        self._status = "incomplete" if self._reason else "completed"
        self._close_item()

    def last(self, usage: Usage) -> None:
        self._event(f"response.{self._status}", response=self.response(usage))

    def failed(self, error: dict[str, Any], usage: Usage) -> None:
        """The response has failed: the SDKs raise `error`, which stands in the last event."""
        self._status = "failed"
        shown = {"code": error["code"] or "server_error", "message": error["message"]}
        self._event("response.failed", response={**self.response(usage), "error": shown})
        flat = {key: error[key] for key in ("code", "message", "param")}
        self._event("error", **flat, error=error)

    def response(self, usage: Usage | None) -> dict[str, Any]:
        """The response object as it stands."""
        request = self._request
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": self._status,
            "error": None,
            "incomplete_details": {"reason": self._reason} if self._reason else None,
            "metadata": request.metadata,
            "model": request.model,
            "output": self._output,
            "service_tier": tier_of(request),
            "usage": usage_object(usage) if usage is not None else None,
            **request.echo,
        }

    def _begin(self, kind: str, item: dict[str, Any], prefix: str) -> None:
        self._close_item()
        self._open = kind
        self._parts = []
        number = len(self._output)
        base = self._id.partition("_")[2]
        item = {"id": f"{prefix}{base[:-4]}{number:04x}", **item, "status": "in_progress"}
        self._output.append(item)
        self._event("response.output_item.added", output_index=number, item=item)

    def _part(self, step: str, part: dict[str, Any]) -> None:
        self._item_event(f"response.content_part.{step}", content_index=0, part=part)

    def _close_item(self) -> None:
        if self._open is None:
            return
        text = "".join(self._parts)
        item = self._output[-1]
        kind, self._open = self._open, None
        if kind == "function_call":
            item["arguments"] = text
            self._item_event(
                "response.function_call_arguments.done", arguments=text, name=item["name"]
            )
        elif kind == "reasoning":
            part: dict[str, Any] = {"type": "reasoning_text", "text": text}
            self._item_event("response.reasoning_text.done", content_index=0, text=text)
            self._part("done", part)
            item["content"] = [part]
        else:
            part = {"type": "output_text", "text": text, "annotations": []}
            part["logprobs"] = self._logprobs
            self._item_event(
                "response.output_text.done", content_index=0, text=text, logprobs=self._logprobs
            )
            self._part("done", part)
            item["content"] = [part]
        item["status"] = "incomplete" if self._status == "incomplete" else "completed"
        number = len(self._output) - 1
        self._event("response.output_item.done", output_index=number, item=item)

    def _item_event(self, kind: str, **more: Any) -> None:  # noqa: ANN401 (JSON)
        number = len(self._output) - 1
        self._event(kind, item_id=self._output[-1]["id"], output_index=number, **more)

    def _event(self, kind: str, **more: Any) -> None:  # noqa: ANN401 (JSON)
        data = orjson.dumps({"type": kind, "sequence_number": self._sequence, **more})
        self._sequence += 1
        self._events.append(b"event: " + kind.encode("ascii") + b"\ndata: " + data + END)


def usage_object(usage: Usage) -> dict[str, Any]:
    """Our usage as the Responses API shows it."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


class ResponseRelay(StreamRelay):
    """A streamed response: the worker's chat chunks as events. No `[DONE]` ends it."""

    __slots__ = ("_call", "_one_tool_call", "_request", "_writer")

    object_name = "response"

    def __init__(self, request: InferenceRequest, response_id: str) -> None:
        super().__init__(request, response_id)
        self._request = request
        self._one_tool_call = request.one_tool_call
        self._writer: Writer | None = None
        self._call: int | None = None

    def error_event(self, error: dict[str, Any]) -> bytes:
        if self._writer is None:
            return super().error_event(error)
        self._writer.failed(error, self.bill())
        return self._writer.take()

    def _open(self, event: dict[str, Any]) -> bytes:
        self._writer = Writer(self._request, self._response_id, event.get("created"))
        return b""

    def _rewrite(
        self, event: dict[str, Any], choices: list[dict[str, Any]], *, compact: bool
    ) -> bytes:
        del compact
        if self._writer is None:
            self._opened = True
            self._open(event)
        assert self._writer is not None
        for choice in choices:
            self._normalise(choice)
        return self._writer.take()

    def _normalise(self, choice: dict[str, Any]) -> bool:
        writer = self._writer
        assert writer is not None
        part = _Part.read(choice["delta"], choice)
        if part.reasoning:
            writer.reasoning(part.reasoning)
        if part.text:
            writer.text(part.text, part.logprobs)
        for call in part.calls:
            self._tool_call(writer, call)
        told = bool(part.reasoning or part.text or part.calls)
        if told:
            self._told([part.text, part.reasoning, *(call.arguments for call in part.calls)])
        if choice.get("finish_reason") is not None:
            self._finish(choice)
            if not self._left:
                writer.end(choice["finish_reason"])
        return told

    def _tool_call(self, writer: Writer, call: _Call) -> None:
        if self._one_tool_call and call.number:
            return
        if call.number != self._call:
            self._call = call.number
            writer.call(call.id, call.name)
        if call.arguments:
            writer.arguments(call.arguments)

    def _close(self) -> bytes:
        self.done = True
        assert self._writer is not None, "an answer that has ended has begun"
        self._writer.last(self.bill())
        return self._writer.take()
