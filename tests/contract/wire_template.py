"""Turns recorded and fresh bytes into templates that are equal when the shape is, byte for byte.

Values that may differ (ids, times, texts, numbers) become placeholders of their kind; key order,
spacing, escapes, nulls, and the words of the protocol stay as they are.
"""

from __future__ import annotations

import re

KEPT = frozenset(
    {
        *("chat.completion", "chat.completion.chunk", "text_completion", "list", "model", "error"),
        *("assistant", "function", "stop", "length", "abort", "tool_calls", "sglang"),
        *("BadRequestError", "Bad Request", "503", "400", "SERVICE_UNAVAILABLE", "BAD_REQUEST"),
        *("Unauthorized", "Not Found", "0.5.23", "get_weather", "null"),
    }
)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?')
_NUMBER = re.compile(r"(?<=[:\[,{ ])-?\d+(\.\d+)?(e-?\d+)?(?=[,}\]\s]|$)")
_LOGPROB_BYTES = re.compile(r"\[N(,N)*\]")


def _string(match: re.Match[str]) -> str:
    is_key = match[2] is not None
    return match[0] if is_key or match[1] in KEPT else '"S"'


def _number(match: re.Match[str]) -> str:
    return "F" if match[1] or match[2] else "N"


def text_template(text: str) -> str:
    """The template of one JSON text (or of an SSE event around it)."""
    shown = _NUMBER.sub(_number, _STRING.sub(_string, text))
    return _LOGPROB_BYTES.sub("[N]", shown)


def stream_template(body: str) -> list[str]:
    """Templates of the events in order; a run of equal ones counts once."""
    assert body.endswith("\n\n")
    events: list[str] = []
    for event in body.removesuffix("\n\n").split("\n\n"):
        template = text_template(event)
        if not events or events[-1] != template:
            events.append(template)
    return events


def head_template(head: str) -> list[str]:
    """Status line and headers; dates and lengths are placeholders."""
    lines = []
    for line in head.split("\r\n"):
        name, colon, _value = line.partition(": ")
        volatile = name.lower() in {"date", "content-length"}
        lines.append(f"{name}: *" if colon and volatile else line)
    return lines
