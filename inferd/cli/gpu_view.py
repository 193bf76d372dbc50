"""GPUs as a table for people. Pure. Scripts use `--json`."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from inferd.cli.status_view import UNKNOWN

STYLES = {"free": "green", "quarantined": "red"}
GIB = 1_073_741_824


def gpu_table(gpus: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("gpu", "state", "worker", "model", "memory", "use", "heat", ""):
        table.add_column(column, no_wrap=bool(column), overflow="fold")
    for gpu in gpus:
        table.add_row(
            gpu["gpu"],
            Text(gpu["state"], STYLES.get(gpu["state"], "")),
            gpu["worker"] or "",
            gpu["name"] or UNKNOWN,
            _memory(gpu),
            UNKNOWN if gpu["utilization"] is None else f"{gpu['utilization']:.0%}",
            UNKNOWN if gpu["temperature_c"] is None else f"{gpu['temperature_c']} °C",
            gpu["reason"],
        )
    return table


def _memory(gpu: dict[str, Any]) -> str:
    used, whole = gpu["memory_used_bytes"], gpu["memory_bytes"]
    if whole is None:
        return UNKNOWN
    return f"{UNKNOWN if used is None else f'{used / GIB:.1f}'} of {whole / GIB:.0f} GiB"
