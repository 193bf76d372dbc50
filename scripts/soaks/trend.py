"""Whether something grows: a line through what was seen. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least squares line through (x, y): how much y grows with x; 0 of fewer than two."""
    if len(points) < 2:
        return 0.0
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    if not spread:
        return 0.0
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread


def second_half(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of the span that the points cover, those of its later half: what is made once is over."""
    if not points:
        return []
    middle = (points[0][0] + points[-1][0]) / 2
    return [point for point in points if point[0] >= middle]
