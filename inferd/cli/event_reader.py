"""Bytes of a text/event-stream -> the data of its events. Pure; owned by one response."""

from __future__ import annotations

import re

from inferd.errors import UpstreamError

EVENT_BYTES_MAX = 8_388_608
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventReader:
    """Feeds on the bytes as they come; only `data` fields matter here."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[str]:
        """The data of each event that `data` has completed.

        Raises UpstreamError past `EVENT_BYTES_MAX` in one event.
        """
        self._rest += data
        # A CR at the end may be half of a line's end.
        held = self._rest[-1:] if self._rest.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(self._rest[: len(self._rest) - len(held)])
        self._rest = rest + held
        events = [event for line in lines if (event := self._take(line)) is not None]
        if len(self._rest) + sum(map(len, self._data)) > EVENT_BYTES_MAX:
            raise UpstreamError(f"an event is larger than {EVENT_BYTES_MAX:,} bytes")
        return events

    def _take(self, line: bytes) -> str | None:
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            return None
        event = b"\n".join(self._data).decode("utf-8", "replace") if self._data else None
        self._data.clear()
        return event
