"""One chat stream on its way from a worker to a client: bytes in, bytes out, almost none decoded.

Owned by one attempt. Decoded are the first frame, frames with a finish reason, usage or an error,
and all frames of n > 1 or of a worker that does not write JSON as SGLang does. Usage is kept
and told once, in the last chunk, if the client asked for it. After `[DONE]` nothing follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from inferd.errors import WorkerUnreachable
from inferd.inference import Usage
from inferd.upstream.answer import finish_reason_of, usage_body, usage_of
from inferd.upstream.engine_error import from_event
from inferd.upstream.frames import END, FrameSplitter, decode, encode, frames_of, payload_of

if TYPE_CHECKING:
    from inferd.inference import InferenceRequest

DONE: Final = b"data: [DONE]\n\n"
# Substrings that mark a frame to look into. Inside JSON strings a quote is escaped, so text that a
# model writes cannot look like one of these keys.
_FINISH: Final = b'"finish_reason":"'
_USAGE: Final = b'"usage":{'
_ANY_USAGE: Final = b'"usage":'
_ERROR: Final = b'"error":'
_DONE: Final = b"[DONE]"
_COMPACT: Final = b'"choices":[{"index":'
_USAGE_NULL: Final = b',"usage":null}\n\n'


class ChatRelay:
    """Feeds on a worker's event stream; what `feed` returns goes to the client as it is."""

    __slots__ = (
        "_choices",
        "_created",
        "_finished",
        "_include_usage",
        "_left",
        "_model",
        "_one_tool_call",
        "_opened",
        "_pass_through",
        "_response_id",
        "_splitter",
        "done",
        "events",
        "usage",
    )

    def __init__(self, request: InferenceRequest, response_id: str) -> None:
        self._response_id = response_id
        self._model = request.model
        self._one_tool_call = request.one_tool_call
        self._include_usage = request.include_usage
        self._choices = request.choices
        self._splitter = FrameSplitter()
        self._opened = False
        self._left = False
        self._pass_through = False
        self._finished = 0
        self._created = 0
        self.done = False
        self.events = 0
        self.usage: Usage | None = None

    def feed(self, data: bytes) -> bytes:
        """What the client gets for these bytes; may be empty.

        Raises:
            UpstreamError: an error inside the stream, or bytes that are no event stream of ours.
        """
        block = self._splitter.feed(data)
        if not block or self.done:
            return b""
        if self._pass_through and not (
            _FINISH in block or _USAGE in block or _ERROR in block or _DONE in block
        ):
            if not self._include_usage:
                self.events += block.count(END)
                return block
            if _ANY_USAGE not in block:
                self.events += block.count(END)
                return block.replace(b"}\n\n", _USAGE_NULL)
        return b"".join([self._frame(frame) for frame in frames_of(block)])

    def client_left(self) -> None:
        """Nobody reads any more and the engine was told to abort: only the usage matters now."""
        self._left = True

    def end(self) -> bytes:
        """The worker's body has ended: what is still owed to the client.

        Raises:
            WorkerUnreachable: the answer was not complete.
        """
        if self.done:
            return b""
        if self._finished < self._choices:
            raise WorkerUnreachable("The worker ended its stream before the answer was complete.")
        return self._close()

    def bill(self, prompt_tokens_estimated: int) -> Usage:
        """The engine's own usage, or what was relayed, marked as estimated.

        An attempt that failed before its first event costs nothing.
        """
        usage = self.usage
        if usage is None and not self._opened:
            return Usage(estimated=self._left)
        if (
            usage is not None
            and usage.prompt_tokens
            and (usage.completion_tokens or not self.events)
        ):
            return usage
        return Usage(
            prompt_tokens=usage.prompt_tokens if usage else prompt_tokens_estimated,
            cached_tokens=usage.cached_tokens if usage else 0,
            completion_tokens=max(self.events, usage.completion_tokens if usage else 0),
            estimated=True,
        )

    def _frame(self, frame: bytes) -> bytes:
        payload = payload_of(frame)
        if not payload or self.done:
            return b""
        if payload == _DONE:
            if self._finished < self._choices:
                raise WorkerUnreachable(
                    "The worker ended its stream before the answer was complete."
                )
            return self._close()
        event = decode(payload)
        if event.get("error") is not None:
            raise from_event(event["error"])
        if isinstance(event.get("usage"), dict):
            self.usage = usage_of(event["usage"])
        choices = event.get("choices")
        if not choices:
            return b""
        return self._rewrite(event, choices, compact=_COMPACT in frame)

    def _rewrite(
        self, event: dict[str, Any], choices: list[dict[str, Any]], *, compact: bool
    ) -> bytes:
        ours = event.get("id") == self._response_id and event.get("model") == self._model
        event["id"] = self._response_id
        event["model"] = self._model
        event.pop("usage", None)
        if self._include_usage:
            event["usage"] = None
        opening = b""
        if not self._opened:
            self._opened = True
            self._created = event.get("created") or 0
            self._pass_through = compact and ours and self._choices == 1 and not self._one_tool_call
            opening = b"".join([self._open(event, index) for index in range(self._choices)])
        event["choices"] = [choice for choice in choices if self._normalise(choice)]
        return opening + encode(event) if event["choices"] else opening

    def _open(self, event: dict[str, Any], index: int) -> bytes:
        """The role chunk of one choice; choices open in index order, whoever speaks first."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return encode({**event, "choices": [choice]})

    def _normalise(self, choice: dict[str, Any]) -> bool:
        """Normalise one choice in place; False if nothing is left that the client must get."""
        delta = choice.setdefault("delta", {})
        delta.pop("role", None)
        if self._one_tool_call and delta.get("tool_calls"):
            delta["tool_calls"] = [
                call for call in delta["tool_calls"] if not call.get("index")
            ] or None
        choice.pop("matched_stop", None)
        if choice.get("finish_reason") is not None:
            self._finished += 1
            if not self._left:
                choice["finish_reason"] = finish_reason_of(choice["finish_reason"])
            choice["delta"] = {key: value for key, value in delta.items() if value}
            self.events += 1 if choice["delta"] else 0
            return True
        if not any(delta.values()) and not choice.get("logprobs"):
            return False
        self.events += 1
        return True

    def _close(self) -> bytes:
        self.done = True
        if not self._include_usage:
            return DONE
        usage = self.usage or Usage(completion_tokens=self.events, estimated=True)
        chunk = {
            "id": self._response_id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "choices": [],
            "usage": usage_body(usage),
        }
        return encode(chunk) + DONE
