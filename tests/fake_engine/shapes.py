"""The JSON the real engine writes, key for key. Pure: values in, bytes out."""

from __future__ import annotations

import json
from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"


def usage(prompt: int, completion: int, cached: int | None) -> dict[str, Any]:
    """The usage object. `cached` None: the engine was started without its cache report."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


def weight_metadata(version: str, completion: int) -> dict[str, Any]:
    spans = [{"version": version, "start": 0, "end": completion}]
    return {"weight_version": version, "weight_versions": spans}


def error(status: int, message: str, kind: str) -> bytes:
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return orjson.dumps(body)


def error_event(status: int, message: str, kind: str) -> bytes:
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return b"data: " + json.dumps({"error": body}).encode() + b"\n\n"


class ChunkWriter:
    """Frames of one streamed answer: the constant part is encoded once."""

    def __init__(self, rid: str, object_name: str, created: int, model: str) -> None:
        head = {"id": rid, "object": object_name, "created": created, "model": model}
        self._plain = object_name == "text_completion"
        self._head = b"data: " + orjson.dumps(head)[:-1]

    def _frame(self, choices: bytes, tail: bytes = b"") -> bytes:
        return b'%b,"choices":[%b]%b}\n\n' % (self._head, choices, tail)

    @staticmethod
    def _usage(value: dict[str, Any] | None) -> bytes:
        return b"" if value is None else b',"usage":' + orjson.dumps(value)

    def chat(
        self,
        index: int,
        *,
        role: bool = False,
        content: str | None = None,
        logprobs: Any = None,
        finish: str | None = None,
        matched: int | str | None = None,
        usage_now: dict[str, Any] | None = None,
    ) -> bytes:
        delta: dict[str, Any] = {"reasoning_content": None}
        if role:
            delta["role"] = "assistant"
        if content is not None:
            delta["content"] = content
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
            "matched_stop": matched,
        }
        return self._frame(orjson.dumps(choice), self._usage(usage_now))

    def tool(
        self,
        index: int,
        arguments: str,
        *,
        call_id: str | None = None,
        name: str | None = None,
        usage_now: dict[str, Any] | None = None,
    ) -> bytes:
        call = {
            "id": call_id,
            "index": 0,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        delta = {"role": None, "content": None, "reasoning_content": None, "tool_calls": [call]}
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": None,
            "matched_stop": None,
        }
        return self._frame(orjson.dumps(choice), b',"usage":' + orjson.dumps(usage_now))

    def text(
        self,
        index: int,
        text: str,
        *,
        logprobs: Any = None,
        finish: str | None = None,
        matched: int | str | None = None,
        usage_now: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish,
            "matched_stop": matched,
        }
        return self._frame(orjson.dumps(choice), b',"usage":' + orjson.dumps(usage_now))

    def final_usage(self, value: dict[str, Any]) -> bytes:
        """The chunk without choices. Plain completions leave nulls out of it."""
        if self._plain:
            value = {key: item for key, item in value.items() if item is not None}
        return self._frame(b"", self._usage(value))
