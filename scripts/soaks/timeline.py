"""Draws a chaos run as one SVG: requests by how they ended, first tokens, workers, faults."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from scripts.soaks.chaos_clients import BROKEN, COMPLETE, ERROR, GONE, LEFT, Outcome
from scripts.soaks.chaos_faults import Struck

WIDTH, LEFT_X, RIGHT = 1_200, 130, 20
COLOURS = {
    COMPLETE: "#4c9f70",
    LEFT: "#9db4c0",
    ERROR: "#e09f3e",
    GONE: "#7d5ba6",
    BROKEN: "#c1121f",
}
STATES = {
    "ready": "#4c9f70",
    "draining": "#9db4c0",
    "warming": "#c8d96f",
    "loading": "#f2e394",
    "spawning": "#f2e394",
    "failed": "#c1121f",
    "stopped": "#dddddd",
}
BINS = 240
LANE = 16
TALL = 140


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker's state as it was found at some time."""

    at: float
    worker: str
    state: str


class Timeline:
    """The picture of one run, from `began` to `ended` (loop times)."""

    def __init__(self, began: float, ended: float) -> None:
        self._began = began
        self._span = max(ended - began, 1.0)
        self._parts: list[str] = []
        self._y = 0.0

    def draw(
        self,
        title: str,
        outcomes: Sequence[Outcome],
        seen: Sequence[Seen],
        struck: Sequence[Struck],
    ) -> str:
        """The whole SVG."""
        self._text(LEFT_X, 18, title, size=14)
        self._y = 30
        self._legend({**COLOURS})
        self._requests(outcomes)
        self._first_tokens(outcomes)
        self._workers(seen)
        self._faults(struck)
        self._axis()
        height = self._y + 10
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}"'
            f' font-family="sans-serif" font-size="11">\n<rect width="{WIDTH}"'
            f' height="{height:.0f}" fill="white"/>\n' + "\n".join(self._parts) + "\n</svg>\n"
        )

    def _x(self, at: float) -> float:
        return LEFT_X + (WIDTH - LEFT_X - RIGHT) * (at - self._began) / self._span

    def _text(self, x: float, y: float, text: str, *, size: int = 11, end: bool = False) -> None:
        anchor = ' text-anchor="end"' if end else ""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{anchor}>{escape(text)}</text>'
        )

    def _rect(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
            f' fill="{colour}"/>'
        )

    def _legend(self, colours: dict[str, str]) -> None:
        x = float(LEFT_X)
        for name, colour in colours.items():
            self._rect(x, self._y, 10, 10, colour)
            self._text(x + 14, self._y + 9, name)
            x += 30 + 7 * len(name)
        self._y += 18

    def _requests(self, outcomes: Iterable[Outcome]) -> None:
        """Stacked: how many ended in each part of the time."""
        bins: list[dict[str, int]] = [{} for _ in range(BINS)]
        for outcome in outcomes:
            number = min(int(BINS * (outcome.ended - self._began) / self._span), BINS - 1)
            bins[number][outcome.kind] = bins[number].get(outcome.kind, 0) + 1
        most = max((sum(one.values()) for one in bins), default=0) or 1
        width = (WIDTH - LEFT_X - RIGHT) / BINS
        bottom = self._y + TALL
        for number, one in enumerate(bins):
            y = bottom
            for kind, colour in COLOURS.items():
                if count := one.get(kind, 0):
                    height = TALL * count / most
                    y -= height
                    self._rect(LEFT_X + number * width, y, width, height, colour)
        self._text(LEFT_X - 8, self._y + 10, f"{most * BINS / self._span:.1f}/s", end=True)
        self._text(LEFT_X - 8, bottom - 50, "requests ended", end=True)
        self._y = bottom + 14

    def _first_tokens(self, outcomes: Iterable[Outcome]) -> None:
        """One dot a stream, from 10 ms to 100 s."""
        bottom = self._y + TALL / 2
        dots: list[str] = []
        for outcome in outcomes:
            if outcome.first is None:
                continue
            took_s = max(outcome.first - outcome.began, 0.01)
            y = bottom - TALL / 2 * (math.log10(took_s) + 2) / 4
            x = self._x(outcome.first)
            dots.append(f"M{x:.1f} {y:.1f}h0")
        self._parts.append(
            f'<path d="{"".join(dots)}" stroke="#33658a" stroke-width="2.4"'
            ' stroke-opacity="0.5" stroke-linecap="round"/>'
        )
        self._text(LEFT_X - 8, self._y + 8, "100 s", end=True)
        self._text(LEFT_X - 8, bottom - TALL / 4 + 4, "first event", end=True)
        self._text(LEFT_X - 8, bottom, "10 ms", end=True)
        self._y = bottom + 14

    def _workers(self, seen: Sequence[Seen]) -> None:
        lanes = sorted({one.worker for one in seen})
        for lane in lanes:
            mine = [one for one in seen if one.worker == lane]
            for one, after in zip(mine, [*mine[1:], None], strict=True):
                x = self._x(one.at)
                until = self._x(after.at) if after else WIDTH - RIGHT
                colour = STATES.get(one.state, "#ffffff")
                self._rect(x, self._y, max(until - x, 0.5), LANE - 4, colour)
            self._text(LEFT_X - 8, self._y + 10, lane, end=True)
            self._y += LANE
        self._legend({name: STATES[name] for name in STATES if name != "spawning"})

    def _faults(self, struck: Sequence[Struck]) -> None:
        for name in sorted({one.fault for one in struck}):
            for one in struck:
                if one.fault == name:
                    self._rect(self._x(one.at), self._y, 2, LANE - 4, "#222222")
            self._text(LEFT_X - 8, self._y + 10, name, end=True)
            self._y += LANE

    def _axis(self) -> None:
        step_s = next(step for step in (5, 15, 60, 120, 300, 900, 3_600) if self._span / step <= 16)
        for number in range(int(self._span // step_s) + 1):
            at = self._began + number * step_s
            label = f"{number * step_s} s" if step_s < 60 else f"{number * step_s // 60} min"
            self._text(self._x(at), self._y + 12, label)
        self._y += 16
