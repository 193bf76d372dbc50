"""Batches as people see them: a table, one in full, a line of progress. Scripts use `--json`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

Batch = dict[str, Any]


def batch_table(batches: Iterable[Batch]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "status", "model", "done", "failed", "tokens", "created", "ends"):
        table.add_column(column, no_wrap=column == "id", overflow="fold")
    for batch in batches:
        counts = batch["request_counts"]
        table.add_row(
            batch["id"],
            batch["status"],
            batch["model"] or "",
            f"{counts['completed'] + counts['failed']:,} of {counts['total']:,}",
            f"{counts['failed']:,}",
            f"{batch['usage']['total_tokens']:,}",
            time(batch["created_at"]),
            ends(batch),
        )
    return table


def ends(batch: Batch) -> str:
    """When it ended, or should."""
    for name in ("completed_at", "failed_at", "expired_at", "cancelled_at"):
        if batch[name] is not None:
            return time(batch[name])
    expected = batch["inferd"]["estimated_completion_at"]
    if expected is None:
        return f"by {time(batch['expires_at'])}"
    late = "" if batch["inferd"]["in_time"] else ", too late"
    return f"about {time(expected)}{late}"


def in_full(batch: Batch) -> str:
    """Everything that there is to say of one, a line each."""
    counts, usage = batch["request_counts"], batch["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    said = f"{counts['total']:,}: {counts['completed']:,} completed, {counts['failed']:,} failed"
    tokens = f"{usage['input_tokens']:,} in ({cached:,} cached), {usage['output_tokens']:,} out"
    lines = [
        f"{batch['id']}: {batch['status']}",
        f"  endpoint  {batch['endpoint']}",
        f"  model     {batch['model'] or 'not known yet'}",
        f"  input     {batch['input_file_id']}",
        f"  lines     {said}",
        f"  tokens    {tokens}",
        *([f"  cost      {costs}"] if (costs := cost(batch)) else []),
        f"  created   {time(batch['created_at'])}, window {batch['completion_window']}",
        f"  ends      {ends(batch)}",
    ]
    lines += [
        f"  {kind:<9} {batch[f'{kind}_file_id']}"
        for kind in ("output", "error")
        if batch[f"{kind}_file_id"] is not None
    ]
    for name, value in (batch["metadata"] or {}).items():
        lines.append(f"  metadata  {name}={value}")
    if batch["errors"] is not None:
        lines += [f"  {error_line(error)}" for error in batch["errors"]["data"]]
    return "\n".join(lines)


def after_submit(batch: Batch) -> str:
    """What is known of it once it is checked: whether it should be done in time."""
    follow = f"Follow it: inferd batch show {batch['id']} --wait"
    if batch["status"] == "validating":
        return f"It is being checked. {follow}"
    if batch["errors"] is not None:
        told = [error_line(error) for error in batch["errors"]["data"]]
        return "\n".join([f"It has {batch['status']}:", *told])
    if batch["inferd"]["estimated_completion_at"] is None:
        return f"It is {batch['status'].replace('_', ' ')}. {follow}"
    if batch["inferd"]["in_time"]:
        return f"It should be done {ends(batch)}. {follow}"
    expires = time(batch["expires_at"])
    return (
        f"It should be done {ends(batch)}: its window ends {expires}, and what is not done by then"
        f" expires. {follow}"
    )


def error_line(error: dict[str, Any]) -> str:
    where = "file" if error["line"] is None else f"line {error['line']}"
    param = f" {error['param']}" if error["param"] else ""
    return f"{where}:{param} {error['message']} ({error['code']})"


def progress(batch: Batch, now: float) -> str:
    """What is shown behind the bar: how far, how much, how long."""
    usage = batch["usage"]
    parts = [batch["status"].replace("_", " "), f"{usage['total_tokens']:,} tokens"]
    if costs := cost(batch):
        parts.append(costs)
    if failed := batch["request_counts"]["failed"]:
        parts.append(f"{failed:,} failed")
    expected = batch["inferd"]["estimated_completion_at"]
    if expected is not None:
        parts.append(f"about {duration(max(0.0, expected - now))} left")
        if not batch["inferd"]["in_time"]:
            parts.append("later than its window")
    return ", ".join(parts)


def cost(batch: Batch) -> str:
    """What it has cost so far; empty where nothing has a price."""
    amount = batch["inferd"]["cost"]
    return f"{amount} {batch['inferd']['currency']}" if float(amount) else ""


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
