"""One worker for people: what is known of it, a line each. Pure. Scripts use `--json`."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferd.cli.status_view import UNKNOWN, duration

Answer = dict[str, Any]


def worker_details(worker: Answer) -> RenderableType:
    """Its state, its process, its load, and how the life before it ended."""
    rows = {
        "pool": worker["pool"],
        "state": f"{worker['state']} for {duration(worker['since_s'])}",
        "reason": worker["reason"],
        "progress": worker["progress"],
        "outlook": worker["outlook"],
        "requests": f"{worker['inflight']:,} of at most {worker['inflight_max']:,}",
        "tokens": f"{worker['outstanding_tokens']:,} outstanding",
        "KV cache": _kv_cache(worker),
        "engine": _engine(worker),
        "address": worker["url"],
        "GPUs": ", ".join(worker["devices"]),
        "weights": worker["weights"] or "",
        "output": worker["output"] or "",
        "last failure": worker["last_failure"],
    }
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    parts: list[RenderableType] = [Text(worker["worker"], "bold"), table]
    if worker["last_lines"]:
        parts += [Text("\nIts last words:", "bold"), *map(Text, worker["last_lines"])]
    return Group(*parts)


def _kv_cache(worker: Answer) -> str:
    if worker["kv_tokens"] is None:
        return UNKNOWN
    return f"{worker['kv_tokens_used']:,} of {worker['kv_tokens']:,} tokens"


def _engine(worker: Answer) -> str:
    if worker["attached"]:
        return "attached: somebody else runs it"
    if worker["pid"] is None or worker["state"] in {"stopped", "failed"}:
        return "no process"
    started = "an earlier inferd" if worker["adopted"] else "this inferd"
    return f"process {worker['pid']}, started by {started}"
