"""A recorded stream as people read it: its pieces joined by choice and kind. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

EVENT: Final = "data: "
_KINDS: Final = ("reasoning_content", "content", "refusal", "text")


def joined(answer: str) -> str:
    """The text of an event stream; any other answer as it is.

    What is no event of a known kind, as an error, is kept as it came.
    """
    if not answer.startswith((EVENT, "event: ", ":")):
        return answer
    parts: dict[str, str] = {}
    others: list[str] = []
    for line in answer.splitlines():
        if not line.startswith(EVENT) or line == f"{EVENT}[DONE]":
            continue
        try:
            event = json.loads(line.removeprefix(EVENT))
        except ValueError:  # cut at the limit of what is kept
            others.append(line)
            continue
        if not isinstance(event, dict) or event.get("error") is not None:
            others.append(json.dumps(event))
            continue
        for name, piece in _pieces(event):
            parts[name] = parts.get(name, "") + piece
    shown = [f"{name}: {text}" for name, text in parts.items() if text]
    return "\n".join([*shown, *others])


def _pieces(event: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(event.get("delta"), str):  # of /v1/responses
        yield str(event.get("type", "")).removesuffix(".delta"), event["delta"]
    for choice in event.get("choices") or ():
        told = {**choice, **(choice.get("delta") or {})}
        of = f" of choice {choice['index']}" if choice.get("index") else ""
        for kind in _KINDS:
            if told.get(kind):
                yield kind + of, told[kind]
        for call in told.get("tool_calls") or ():
            function = call.get("function") or {}
            name = f"tool call {call.get('index', 0)}{of}"
            yield name, f"{function.get('name') or ''}{function.get('arguments') or ''}"
