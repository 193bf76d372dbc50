"""Durations as people type them: `90s`, `10m`, `12h`, `30d`, `2w`. Pure."""

from __future__ import annotations

import re

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")


def parse_duration(text: str) -> float:
    """Seconds. Raises ValueError, whose text says what is wanted."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is no duration: write a number and s, m, h, d or w, like 30d")
    return float(int(match[1]) * _SECONDS[match[2]])
