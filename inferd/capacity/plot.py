"""Runs as one SVG picture: TTFT and load over time, and each team's share. Pure.

A line or a bar a run, so that runs can be compared; nothing but the standard library draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from inferd.capacity.simulate import Run
from inferd.capacity.windows import arrivals, shares, ttft_p95

WIDTH: Final = 800
HEIGHT: Final = 200
MARGIN: Final = 40
TEAMS_MAX: Final = 12
COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")


def svg(runs: Sequence[Run]) -> str:
    """The picture as text of an .svg file."""
    names = [run.scenario.policy for run in runs]
    parts = [
        _lines("TTFT p95 over time, s", names, [ttft_p95(run) for run in runs], 0),
        _lines("Requests arrived per window", names, [arrivals(run) for run in runs], 1),
        _bars("Share of the service, by team", runs, 2),
    ]
    height = len(parts) * (HEIGHT + 2 * MARGIN)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _lines(title: str, names: Sequence[str], series: Sequence[Sequence[float]], row: int) -> str:
    highest = max((max(values, default=0.0) for values in series), default=0.0) or 1.0
    drawn = [_frame(title, f"{highest:.3g}", row)]
    for number, (name, values) in enumerate(zip(names, series, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{_x(at, len(values)):.1f},{_y(value / highest, row):.1f}"
            for at, value in enumerate(values)
        )
        drawn.append(f'<polyline fill="none" stroke="{colour}" points="{points}"/>')
        at = MARGIN + 130 * number
        label = (
            f'<text x="{at}" y="{_top(row) + HEIGHT + 16}" fill="{colour}">{escape(name)}</text>'
        )
        drawn.append(label)
    return "".join(drawn)


def _bars(title: str, runs: Sequence[Run], row: int) -> str:
    of_runs = [shares(run) for run in runs]
    teams = list(of_runs[0])[:TEAMS_MAX] if of_runs else []
    highest = max((share for one in of_runs for share in one.values()), default=0.0) or 1.0
    drawn = [_frame(title, f"{highest:.1%}", row)]
    room = (WIDTH - 2 * MARGIN) / max(1, len(teams))
    wide = room * 0.8 / max(1, len(runs))
    for place, team in enumerate(teams):
        left = MARGIN + room * place
        for number, one in enumerate(of_runs):
            top = _y(one.get(team, 0.0) / highest, row)
            tall = _top(row) + HEIGHT - top
            drawn.append(
                f'<rect x="{left + number * wide:.1f}" y="{top:.1f}" width="{wide:.1f}"'
                f' height="{tall:.1f}" fill="{COLOURS[number % len(COLOURS)]}"/>'
            )
        under = _top(row) + HEIGHT + 16
        drawn.append(f'<text x="{left:.1f}" y="{under}">{escape(team[:12])}</text>')
    return "".join(drawn)


def _frame(title: str, highest: str, row: int) -> str:
    top = _top(row)
    return (
        f'<text x="{MARGIN}" y="{top - 8}" font-weight="bold">{escape(title)}</text>'
        f'<text x="2" y="{top + 10}">{escape(highest)}</text>'
        f'<rect x="{MARGIN}" y="{top}" width="{WIDTH - 2 * MARGIN}" height="{HEIGHT}"'
        f' fill="none" stroke="#cccccc"/>'
    )


def _top(row: int) -> int:
    return row * (HEIGHT + 2 * MARGIN) + MARGIN


def _x(at: int, count: int) -> float:
    return MARGIN + (WIDTH - 2 * MARGIN) * at / max(1, count - 1)


def _y(share: float, row: int) -> float:
    return _top(row) + HEIGHT * (1 - share)
