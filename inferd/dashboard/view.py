"""How values are written on the pages: durations, counts, shares, times, money. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from inferd.dashboard.plots import shown

_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400
NOTHING: Final = "-"


def seconds(value: float | None) -> str:
    """A duration: `38 ms`, `2.41 s`, `3 min 20 s`, `5 h 10 min`, `3 d 4 h`."""
    if value is None:
        return NOTHING
    if value < 1:
        return f"{value * 1_000:.0f} ms"
    if value < _MINUTE_S:
        return f"{value:.2f} s"
    whole = int(value)
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"


def count(value: float | None) -> str:
    """A whole number in groups of three."""
    return NOTHING if value is None else f"{value:,.0f}".replace(",", " ")


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{value * 100:.0f} %"


def moment(ts_us: float | None) -> str:
    """A stored time, UTC."""
    if ts_us is None:
        return NOTHING
    at = datetime.fromtimestamp(ts_us / 1_000_000, UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S")


def moment_s(ts_s: float | None) -> str:
    return NOTHING if ts_s is None else moment(ts_s * 1_000_000)


def plain(value: Any) -> str:  # noqa: ANN401 - whatever a row holds
    """Any value of a row; what is not there is a dash."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


FILTERS: Final = {
    "shown": shown,
    "seconds": seconds,
    "count": count,
    "share": share,
    "moment": moment,
    "moment_s": moment_s,
    "plain": plain,
}
