"""Bytes of an event stream -> whole frames, however the network cut them. Pure; owns one tail.

A frame is one event, ending in a blank line. Frames leave as bytes, several at a time when one read
brought several; only the few that must be understood are decoded (see `relay.py`).
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from inferd.errors import InvalidAnswer

FRAME_BYTES_MAX: Final = 4_194_304
"""One event; the largest real ones carry logprobs of 20 alternatives and stay under 100 KB."""
END: Final = b"\n\n"


class FrameSplitter:
    """Cuts a byte stream at blank lines; line ends of CR LF become LF."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    @property
    def tail(self) -> bytes:
        """Bytes after the last blank line: an event that has not ended."""
        return self._tail

    def feed(self, data: bytes) -> bytes:
        """All frames that are whole by now, as one block; empty when there is none.

        Raises:
            InvalidAnswer: an event longer than `FRAME_BYTES_MAX`.
        """
        if self._tail:
            data = self._tail + data
            self._tail = b""
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        if data.endswith(END):
            return data
        cut = data.rfind(END) + len(END)
        if cut < len(END):
            cut = 0
        if len(data) - cut > FRAME_BYTES_MAX:
            raise InvalidAnswer("The worker sent an event that does not end.")
        self._tail = data[cut:]
        return data[:cut]


def frames_of(block: bytes) -> list[bytes]:
    """The single frames of a block of whole frames, each with its blank line."""
    return [frame + END for frame in block.split(END) if frame]


def payload_of(frame: bytes) -> bytes:
    """The data of a frame without its field names; empty for a comment."""
    if frame.startswith(b"data: ") and frame.count(b"\n") == len(END):
        return frame[6:-2]
    lines = [line[5:].lstrip(b" ") for line in frame.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


def decode(payload: bytes) -> dict[str, Any]:
    """The JSON object of an event.

    Raises:
        InvalidAnswer: the worker sent something else; what it sent is not repeated.
    """
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise InvalidAnswer("The worker sent an event that is not JSON.") from error
    if not isinstance(value, dict):
        raise InvalidAnswer("The worker sent an event that is not a JSON object.")
    return value


def encode(value: dict[str, Any]) -> bytes:
    """One frame."""
    return b"data: " + orjson.dumps(value) + END
