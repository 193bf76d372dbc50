"""Teams and keys as tables for people. Scripts use `--json`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table

PIPE_COLUMNS = 200
"""Width where no terminal says its own: nothing is cut for a reader that is a program."""


def show(table: RenderableType) -> None:
    console = plain_console()
    if not console.is_terminal:
        console = plain_console(width=PIPE_COLUMNS)
    console.print(table)


def plain_console(width: int | None = None) -> Console:
    """A console that shows text as it is: names and paths are no markup."""
    return Console(width=width, markup=False, emoji=False, highlight=False)


def key_table(keys: Iterable[dict[str, Any]]) -> Table:
    """Keys without their secrets: `prefix` is what a secret begins with."""
    table = new_table(
        "id", "team", "name", "secret", "models", "limits", "state", "created", "expires"
    )
    for key in keys:
        state = key["state"].replace("_", " ")
        if key["previous_secret_until"] is not None:
            state += f", old secret until {_time(key['previous_secret_until'])}"
        table.add_row(
            key["id"],
            key["team"],
            key["name"],
            f"{key['prefix']}…",
            _names(key["models"]),
            _limits(key["limits"]),
            state,
            _time(key["created_at"]),
            "never" if key["expires_at"] is None else _time(key["expires_at"]),
        )
    return table


def team_table(teams: Iterable[dict[str, Any]]) -> Table:
    table = new_table("team", "weight", "models", "tokens/s", "requests/s", "priority", "keys")
    for team in teams:
        table.add_row(
            team["name"],
            str(team["weight"]),
            _names(team["models"]),
            _lines(team, "tokens"),
            _lines(team, "requests"),
            team["priority_max"],
            str(team["active_keys"]),
        )
    return table


def new_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        # What is copied from a table is never broken over two lines.
        table.add_column(column, no_wrap=column in {"id", "team", "secret"}, overflow="fold")
    return table


def _names(names: list[str] | None) -> str:
    return "all" if names is None else ", ".join(names)


def _limit(rate: float | None, burst: int | None) -> str:
    if rate is None:
        return "no limit"
    return f"{rate:,}" if burst is None else f"{rate:,} (burst {burst:,})"


def _limits(limits: dict[str, Any]) -> str:
    """A key's own, in one cell."""
    kinds = ("tokens", "requests")
    return "; ".join(
        f"{kind}/s {_limit(limits[f'{kind}_per_s'], limits[f'burst_{kind}'])}"
        for kind in kinds
        if f"{kind}_per_s" in limits
    )


def _lines(team: dict[str, Any], kind: str) -> str:
    """A team's limit of a kind, then those on single models, one a line."""
    rate, burst = f"{kind}_per_s", f"burst_{kind}"
    lines = [_limit(team[rate], team[burst])]
    lines += [
        f"{one['model']}: {_limit(one[rate], one[burst])}"
        for one in team["limits"]
        if one[rate] is not None
    ]
    return "\n".join(lines)


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
