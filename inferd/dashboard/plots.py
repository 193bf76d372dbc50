"""Line plots as SVG, made on the server: no script is needed, and screen readers get a sentence.

Colours are classes of the style sheet, so that they follow dark and light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 320
HEIGHT: Final = 72
POINTS_MAX: Final = 160
"""More would not be seen at this width; neighbours are merged by their largest."""
_TOP: Final = 6
_BOTTOM: Final = 6

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One line; None is a gap."""

    name: str
    values: Values


def plot(title: str, lines: Sequence[Line], unit: str, limit: float | None = None) -> str:
    """The picture, from zero to its largest value. `limit` is drawn as a dashed line.

    `unit` is `s`, `ms`, `%` or empty; values are in seconds for `ms`, and shares for `%`.
    """
    known = [value for line in lines for value in line.values if value is not None]
    top = max([*known, limit or 0.0, 1e-9])
    told = ", ".join(f"{line.name} {_last(line.values, unit)}" for line in lines)
    head = (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" preserveAspectRatio="none"'
        f' aria-label="{escape(title)}: {escape(told)}">'
    )
    parts = [head]
    if limit is not None:
        y = _y(limit, top)
        parts.append(f'<line class="limit" x1="0" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for number, line in enumerate(lines):
        runs = _runs(_merged(line.values), top)
        parts += [f'<polyline class="line line-{number}" points="{points}"/>' for points in runs]
    parts.append("</svg>")
    return "".join(parts)


def shown(value: float | None, unit: str) -> str:
    """A value as a person reads it."""
    if value is None:
        return "-"
    if unit == "%":
        return f"{value * 100:.0f} %"
    if unit == "ms":
        return f"{value * 1_000:.0f} ms"
    if unit == "s":
        return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"  # noqa: PLR2004 - digits shown
    return f"{value:.0f}"


def _last(values: Values, unit: str) -> str:
    return shown(values[-1] if values else None, unit)


def _merged(values: Values) -> list[float | None]:
    each = -(-len(values) // POINTS_MAX) or 1
    merged: list[float | None] = []
    for start in range(0, len(values), each):
        known = [value for value in values[start : start + each] if value is not None]
        merged.append(max(known) if known else None)
    return merged


def _runs(values: Sequence[float | None], top: float) -> list[str]:
    """Points of each stretch without a gap; a single point becomes a short dash."""
    step = WIDTH / max(1, len(values) - 1)
    runs: list[list[tuple[float, float]]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((number * step, _y(value, top)))
    for run in runs:
        if len(run) == 1:
            run.append((run[0][0] + 0.5, run[0][1]))
    return [" ".join(f"{x:.1f},{y:.1f}" for x, y in run) for run in runs if run]


def _y(value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / top
