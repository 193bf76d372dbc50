"""Draws what an event and a request cost each contender, as one SVG with a logarithmic scale."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from scripts.benchmarks.relay.contenders import DIRECT, INFERD, SPLICE
from scripts.benchmarks.relay.report import Rounds

WIDTH, LABEL, RIGHT, BAR, GAP, TITLE = 900, 120, 90, 18, 8, 34
PANELS: Final = (
    ("event_us", "CPU of a streamed event, µs"),
    ("request_us", "CPU of a whole request, µs"),
)
COLOURS: Final = {INFERD: "#c1121f", SPLICE: "#9db4c0"}
OTHERS: Final = "#4c6f91"


def draw(seen: Rounds) -> str:
    """The whole picture: a bar for the median, a line from the least to the most."""
    names = [name for name in seen if name != DIRECT]
    tall = TITLE + len(names) * (BAR + GAP) + GAP
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tall * len(PANELS)}"'
            ' font-family="sans-serif" font-size="13">'
        ),
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (what, title) in enumerate(PANELS):
        every = {name: [getattr(cost, what) for cost in seen[name]] for name in names}
        # Who answered nothing of a kind has no bar.
        costs = {name: values for name, values in every.items() if not any(map(math.isnan, values))}
        parts += _panel(costs, title, number * tall)
    return "\n".join([*parts, "</svg>", ""])


def _panel(costs: dict[str, list[float]], title: str, top: float) -> list[str]:
    every = [value for values in costs.values() for value in values]
    low = 10 ** math.floor(math.log10(min(every)))
    high = max(max(every) * 1.1, low * 10)

    def x(value: float) -> float:
        span = WIDTH - LABEL - RIGHT
        return LABEL + span * math.log(value / low) / math.log(high / low)

    parts = [f'<text x="{LABEL}" y="{top + 22}" font-weight="bold">{escape(title)}</text>']
    tick = low
    bottom = top + TITLE + len(costs) * (BAR + GAP)
    while tick <= high:
        parts.append(
            f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top + TITLE - 4}" y2="{bottom}"'
            ' stroke="#dddddd"/>'
        )
        tick *= 10
    for row, (name, values) in enumerate(costs.items()):
        parts += _bar(name, values, x, top + TITLE + row * (BAR + GAP))
    return parts


def _bar(name: str, values: Sequence[float], x: Callable[[float], float], y: float) -> list[str]:
    middle = statistics.median(values)
    colour = COLOURS.get(name, OTHERS)
    half = y + BAR / 2
    return [
        f'<text x="{LABEL - 8}" y="{half + 5}" text-anchor="end">{escape(name)}</text>',
        (
            f'<rect x="{LABEL}" y="{y}" width="{x(middle) - LABEL:.1f}" height="{BAR}"'
            f' fill="{colour}"/>'
        ),
        (
            f'<line x1="{x(min(values)):.1f}" x2="{x(max(values)):.1f}" y1="{half}" y2="{half}"'
            ' stroke="black"/>'
        ),
        f'<text x="{x(max(values)) + 8:.1f}" y="{half + 5}">{middle:,.0f}</text>',
    ]
