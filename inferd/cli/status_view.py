"""The answer of /admin/v1/status as tables for people. Pure. Scripts use `--json`."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

STYLES = {
    "ready": "green",
    "failed": "red",
    "unavailable": "red",
    "no worker is ready": "red",
    "stopped": "dim",
}
OTHER_STYLE = "yellow"
UNKNOWN = "?"

Answer = dict[str, Any]


def status_view(status: Answer) -> RenderableType:
    """Node, pools, workers, teams."""
    workers = [worker for pool in status["pools"] for worker in pool["workers"]]
    parts: list[RenderableType] = [_node(status), Text(), _pools(status["pools"])]
    parts += [Text(), worker_table(workers)]
    if status["teams"]:
        parts += [Text(), _teams(status["teams"])]
    return Group(*parts)


def worker_table(workers: list[Answer]) -> Table:
    table = _table("worker", "state", "since", "requests", "tokens", "KV cache", "")
    for worker in workers:
        table.add_row(
            worker["worker"],
            _state(worker["state"]),
            duration(worker["since_s"]),
            f"{worker['inflight']:,}/{worker['inflight_max']:,}",
            f"{worker['outstanding_tokens']:,}",
            UNKNOWN if worker["kv_utilization"] is None else f"{worker['kv_utilization']:.0%}",
            _remark(worker),
        )
    return table


def duration(seconds: float) -> str:
    """About how long, in the two units that matter."""
    whole = int(seconds)
    minutes, hours, days = whole // 60, whole // 3_600, whole // 86_400
    if minutes == 0:
        return f"{whole} s"
    if hours == 0:
        return f"{minutes} min"
    if days == 0:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def _node(status: Answer) -> Text:
    return Text.assemble(
        (f"inferd {status['version']}", "bold"),
        ": ",
        _state(status["state"]),
        f", up {duration(status['uptime_s'])}, {status['requests_in_flight']:,} requests in flight,"
        f" {status['config']}",
    )


def _pools(pools: list[Answer]) -> Table:
    table = _table("pool", "state", "workers", "waiting", "batch", "oldest wait", "waiting by team")
    for pool in pools:
        ready = sum(worker["state"] == "ready" for worker in pool["workers"])
        waits = any(pool["waiting"].values())
        by_team = sorted(pool["waiting_by_team"].items(), key=lambda entry: -entry[1])
        table.add_row(
            pool["pool"],
            _state(pool["state"]),
            f"{ready}/{len(pool['workers'])} ready",
            f"{pool['waiting']['interactive']:,}",
            f"{pool['waiting']['batch']:,}",
            f"{pool['oldest_wait_s']:.1f} s" if waits else "",
            ", ".join(f"{team} {count:,}" for team, count in by_team),
        )
    return table


def _teams(teams: list[Answer]) -> Table:
    table = _table("team", "tokens left", "of", "requests running", "tokens claimed")
    for team in teams:
        limited = team["tokens_left"] is not None
        table.add_row(
            team["team"],
            f"{team['tokens_left']:,}" if limited else "no limit",
            f"{team['burst_tokens']:,}" if limited else "",
            f"{team['outstanding_requests']:,}",
            f"{team['outstanding_tokens']:,}",
        )
    return table


def _remark(worker: Answer) -> str:
    """What explains the state: how far it is, why it ended, what comes next, who runs it."""
    if worker["state"] == "ready":
        return f"attached, {worker['url']}" if worker["attached"] else ""
    if worker["progress"] and worker["state"] != "failed":
        return str(worker["progress"])
    return "; ".join(filter(None, (worker["reason"], worker["outlook"])))


def _state(state: str) -> Text:
    return Text(state, STYLES.get(state, OTHER_STYLE))


def _table(*columns: str) -> Table:
    """Numbers stand right. Only the last column may be broken over lines."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    numbers = {"requests", "tokens", "KV cache", "waiting", "batch", "oldest wait", "since"}
    numbers |= {"tokens left", "of", "requests running", "tokens claimed"}
    for column in columns:
        last = column == columns[-1]
        table.add_column(column, no_wrap=not last, overflow="fold")
        if column in numbers:
            table.columns[-1].justify = "right"
    return table
