"""Faults on demand: armed by `--fault JSON` or POST /fake/fault, each with a kind and parameters.

Common parameters: `times` (how many requests it hits; without it, all), `match` (only requests
whose body contains it). Kinds and their own parameters are listed in `KINDS`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

KINDS: dict[str, str] = {
    # At start.
    "slow_load": "seconds; progress (true: a log line ten times on the way)",
    "exit_at_start": "code; times; counter (file that counts the starts); message",
    "orphan": "seconds: starts a child in this session that ignores SIGTERM and outlives us",
    "parts": "count: starts children called like the engine's own, which do nothing",
    # The whole engine.
    "hang": "accept, never answer; probes (true: /ready, /health and loads still answer)",
    "frozen": "no more tokens for anybody; probes stay healthy",
    "scheduler_death": "frozen, /health hangs, and 6.3 s (scaled) later the process dies",
    "block_probes": "probes wait while any prompt is being prefilled",
    "ignore_disconnect": "a client that left keeps its slot",
    "ignore_abort": "abort_request answers 200 and does nothing",
    # One request. `after` counts frames already sent.
    "crash": "after: the process kills itself with SIGKILL",
    "reset": "after: TCP reset",
    "cut": "after; clean (true: end the chunked body properly): no [DONE]",
    "silent": "after: nothing more on this stream, its slot stays taken",
    "garbage": "after; data: a frame that is not JSON",
    "not_http": "bytes that are not HTTP",
    "empty": "200 and no frame at all",
    "error": "status; message; type: an error body before the first frame",
    "error_frame": "after; code; message; type: an error event inside a 200, then [DONE]",
    "crlf": "frames end in CRLF",
    "batch": "frames: that many frames in one write",
    "dribble": "seconds: every byte its own write, that far apart",
    "usage": "mode: zero | missing",
    "slow_first": "seconds before the first token",
    "huge": "after; bytes: one frame with that much text",
}
PER_REQUEST = frozenset(list(KINDS)[10:])


class UnknownFault(ValueError):
    """A kind that does not exist."""


@dataclass(slots=True)
class Fault:
    """One armed fault. `times` None means for ever; seconds are not scaled by speed."""

    kind: str
    times: int | None = None
    match: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)

    def number(self, name: str, default: float = 0) -> float:
        return float(self.parameters.get(name, default))

    def count(self, name: str, default: int = 0) -> int:
        return int(self.parameters.get(name, default))

    def text(self, name: str, default: str) -> str:
        return str(self.parameters.get(name, default))

    def flag(self, name: str) -> bool:
        return bool(self.parameters.get(name, False))


class FaultBook:
    """The armed faults."""

    def __init__(self) -> None:
        self._armed: list[Fault] = []
        self.fatal = asyncio.Event()

    def arm(self, spec: dict[str, Any]) -> None:
        """Add a fault, or remove all with kind `clear`. Raises UnknownFault."""
        rest = dict(spec)
        kind = str(rest.pop("kind", ""))
        if kind == "clear":
            self._armed.clear()
            return
        if kind not in KINDS:
            raise UnknownFault(f"no fault {kind!r}; there are: {', '.join(KINDS)}, clear")
        if kind == "scheduler_death":
            self.fatal.set()
        times, match = rest.pop("times", None), rest.pop("match", "")
        self._armed.append(Fault(kind, times, match, rest))

    def find(self, kind: str) -> Fault | None:
        """The armed fault of a kind that concerns the whole engine."""
        return next((fault for fault in self._armed if fault.kind == kind), None)

    def take(self, body: bytes) -> dict[str, Fault]:
        """The faults that hit this request; each uses up one of its `times`."""
        hit: dict[str, Fault] = {}
        for fault in list(self._armed):
            if fault.kind not in PER_REQUEST or fault.kind in hit:
                continue
            if fault.match and fault.match.encode() not in body:
                continue
            hit[fault.kind] = fault
            if fault.times is not None:
                fault.times -= 1
                if fault.times <= 0:
                    self._armed.remove(fault)
        return hit

    def state(self) -> list[dict[str, Any]]:
        return [
            {"kind": one.kind, "times": one.times, "match": one.match, **one.parameters}
            for one in self._armed
        ]
