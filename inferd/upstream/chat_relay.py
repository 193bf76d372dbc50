"""A chat completion's stream: role chunks of ours, tool calls named once, the tier really used.

The most common stream there is: of one choice whose tool calls are not cut, later events pass as
the worker wrote them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferd.upstream.answer import names_a_tool, texts_of, tier_of
from inferd.upstream.frames import encode
from inferd.upstream.relay import StreamRelay

if TYPE_CHECKING:
    from inferd.inference import InferenceRequest


class ChatRelay(StreamRelay):
    """A chat completion."""

    __slots__ = ("_calls_only", "_named", "_one_tool_call", "_tier")

    object_name = "chat.completion.chunk"

    def __init__(self, request: InferenceRequest, response_id: str) -> None:
        super().__init__(request, response_id)
        self._one_tool_call = request.one_tool_call
        self._named = names_a_tool(request)
        self._calls_only = self._named or request.body.get("tool_choice") == "required"
        self._tier = tier_of(request)

    def _may_pass_through(self) -> bool:
        return self._choices == 1 and not self._one_tool_call

    def _open(self, event: dict[str, Any]) -> bytes:
        """The role chunks; choices open in index order, whoever speaks first."""
        return b"".join([self._role(event, index) for index in range(self._choices)])

    def _role(self, event: dict[str, Any], index: int) -> bytes:
        content = None if self._calls_only else ""
        delta = {"role": "assistant", "content": content, "refusal": None}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return encode({**event, **self._of_all(), "choices": [choice]})

    def _of_all(self) -> dict[str, Any]:
        return {**super()._of_all(), "service_tier": self._tier}

    def _normalise(self, choice: dict[str, Any]) -> bool:
        delta = choice["delta"]
        delta.pop("role", None)
        if delta.get("tool_calls"):
            delta["tool_calls"] = [
                _named_once(call)
                for call in delta["tool_calls"]
                if not (self._one_tool_call and call.get("index"))
            ] or None
        choice.pop("matched_stop", None)
        if choice.get("finish_reason") is not None:
            self._finish(choice, named=self._named)
            choice["delta"] = {key: value for key, value in delta.items() if value}
            if choice["delta"]:
                self._told(texts_of(delta))
            return True
        if not any(delta.values()) and not choice.get("logprobs"):
            return False
        self._told(texts_of(delta))
        return True


def _named_once(call: dict[str, Any]) -> dict[str, Any]:
    """Its id, type and name come once: openai-node takes a later null for another name."""
    function = call.get("function")
    if call.get("id") is not None or not isinstance(function, dict):
        return call
    return {"index": call.get("index", 0), "function": {"arguments": function.get("arguments")}}
