"""Clients that ask for streams and then read a few bytes a second, through the least of buffers."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from scripts.benchmarks.relay.native import HOST

BYTES_A_TURN: Final = 4
TURN_S: Final = 0.5
BUFFER_BYTES: Final = 4_096


@dataclass(slots=True)
class SlowReaders:
    """Many of them. One that was cut off reads on: its kernel still holds what came before."""

    reading: list[socket.socket] = field(default_factory=list)
    asked_at: list[float] = field(default_factory=list)
    cut_after_s: list[float] = field(default_factory=list)
    """How long after it had asked each was cut off: the first to ask is the first to be."""

    def begin(self, port: int, key: str, body: dict[str, Any]) -> None:
        """One more, which has asked when this returns."""
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        one.connect((HOST, port))
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}:{port}\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        one.sendall(head.encode() + data)
        one.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self.reading.append(one)
        self.asked_at.append(time.monotonic())

    def note_cuts(self, still_served: int) -> None:
        """Of so many the worker still computes the answers; the others were cut off by now."""
        now = time.monotonic()
        cut = len(self.asked_at) - still_served
        while len(self.cut_after_s) < cut:
            self.cut_after_s.append(now - self.asked_at[len(self.cut_after_s)])

    def turn(self) -> None:
        """Every one reads a little."""
        for one in self.reading:
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                one.recv(BYTES_A_TURN)


@contextmanager
def slow_readers() -> Iterator[SlowReaders]:
    """None at first. They leave at the end."""
    them = SlowReaders()
    try:
        yield them
    finally:
        for one in them.reading:
            one.close()
