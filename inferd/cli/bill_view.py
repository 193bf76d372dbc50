"""Usage, a request's life, the balance and the audit log for people. Pure. Scripts use `--json`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferd.storage.audit import Action

Answer = dict[str, Any]

_TIMES = {"hour": "%Y-%m-%d %H:00", "day": "%Y-%m-%d"}
_KINDS = ("prompt_tokens", "cached_tokens", "completion_tokens")


def time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def usage_table(answer: Answer) -> Table:
    """A row a group, and their sum."""
    table = _table(*(name.removesuffix("_id") for name in answer["by"]))
    for name in ("requests", "input", "of it cached", "output", "estimated", "cost"):
        table.add_column(name, justify="right")
    for group in answer["groups"]:
        table.add_row(*(_shown(name, group[name]) for name in answer["by"]), *_totals(group))
    if len(answer["groups"]) > 1 and answer["by"]:
        table.add_section()
        table.add_row("all", *[""] * (len(answer["by"]) - 1), *_totals(answer["total"]))
    return table


def capacity_table(groups: Iterable[Answer]) -> Table:
    """A row a pool, and hour or day: its slots by what they were used for."""
    groups = list(groups)
    times = [name for name in _TIMES if name in groups[0]]
    table = _table(*times, "pool")
    for name in ("worker hours", "with requests", "slots: interactive", "batch", "idle"):
        table.add_column(name, justify="right")
    for group in groups:
        table.add_row(
            *(_shown(name, group[name]) for name in (*times, "pool")),
            f"{group['worker_s'] / 3_600:,.1f}",
            *(f"{group[name]:.1%}" for name in ("busy", "interactive", "batch", "idle")),
        )
    return table


def recordings_table(kept: Iterable[Answer]) -> Table:
    """A row a team of which text is kept."""
    table = _table("team")
    table.add_column("megabytes", justify="right")
    table.add_column("since (UTC)")
    for one in kept:
        megabytes = f"{one['bytes'] / 1_000_000:,.1f}"
        table.add_row(one["team"], megabytes, _shown("hour", one["since_us"] // 1_000_000))
    return table


def life_view(row: Answer, currency: str) -> RenderableType:
    """What happened, in the order in which it did, then what it was and what it cost."""
    steps = _grid()
    for at_s, told in _steps(row):
        steps.add_row(f"{at_s:9.3f} s", told)
    facts = _grid()
    for name, value in (
        ("team, key", f"{row['team']}, {row['key_id'] or '-'}"),
        ("asked for", f"{row['endpoint']} of {row['pool']}, {row['priority']}"),
        ("input", _input(row)),
        ("output", _output(row)),
        ("cost", f"{row['cost']} {currency}"),
        *((("not billed", _unbilled(one))) for one in row["unbilled"]),
    ):
        facts.add_row(name, value)
    style = "green" if row["outcome"] == "completed" else "yellow"
    ended = Text.assemble((row["outcome"].replace("_", " "), f"bold {style}"))
    if row["error_code"]:
        ended.append(f": {row['error_code']}")
    head = Text(f"{row['request_id']}  {row['response_id'] or ''}", "bold")
    arrived = Text(f"arrived {_moment(row['ts_us'])}")
    return Group(head, arrived, ended, Text(), steps, Text(), facts)


def refusal_view(row: Answer) -> RenderableType:
    """A request that was refused before it had a row in the ledger."""
    facts = _grid()
    for name in ("endpoint", "status", "team", "key_id", "pool", "error", "error_code", "param"):
        if row[name] is not None:
            facts.add_row(name.replace("_", " "), str(row[name]))
    head = Text(row["request_id"], "bold")
    told = Text("refused before it was placed or billed", "bold yellow")
    return Group(head, Text(f"arrived {_moment(row['ts_us'])}"), told, Text(), facts)


def balance_view(answer: Answer) -> RenderableType:
    """What the engines counted, what is billed and not billed, what is left over."""
    table = _table("worker", "tokens")
    for name in ("engine", "billed", "not billed", "left over"):
        table.add_column(name, justify="right")
    table.add_column("")
    for worker in answer["workers"]:
        if worker["difference"] is None:
            table.add_row(worker["worker"], "", "", "", "", "", worker["problem"])
            continue
        running = f"{worker['in_flight']:,} in flight" if worker["in_flight"] else ""
        for kind in _KINDS:
            left = worker["difference"].get(kind)
            table.add_row(
                worker["worker"] if kind == _KINDS[0] else "",
                kind.removesuffix("_tokens"),
                f"{worker['engine'][kind]:,}",
                f"{worker['billed'][kind]:,}",
                f"{worker['unbilled'][kind]:,}",
                "not told" if left is None else Text(f"{left:,}", "red" if left else "green"),
                running if kind == _KINDS[0] else "",
            )
    parts: list[RenderableType] = [table]
    if answer["estimated"]:
        parts += [Text(), Text("Estimated, for their engine told no usage:", "bold")]
        rows = _table("request", "arrived", "team", "worker", "outcome", "input", "output")
        for row in answer["estimated"]:
            rows.add_row(
                row["request_id"],
                _moment(row["ts_us"]),
                row["team"],
                row["worker"],
                row["outcome"],
                f"{row['prompt_tokens']:,}",
                f"{row['completion_tokens']:,}",
            )
        parts.append(rows)
    whole = "balanced" if answer["balanced"] else "not balanced"
    style = "bold green" if answer["balanced"] else "bold red"
    return Group(*parts, Text(), Text(whole, style))


def audit_table(actions: Iterable[Action]) -> Table:
    table = _table("when", "who", "did", "to", "status", "request")
    for one in actions:
        status = str(one.status or "")
        table.add_row(_moment(one.ts_us), one.actor, one.action, one.target, status, one.request_id)
    return table


def _steps(row: Answer) -> list[tuple[float, str]]:
    steps = [(0.0, "arrived, understood")]
    wait_s = row["queue_wait_s"]
    if row["worker"] is None:
        steps.append((wait_s, "never placed on a worker"))
    else:
        tried = f", at attempt {row['attempts']}" if row["attempts"] > 1 else ""
        steps.append((wait_s, f"placed on {row['worker']}{tried}: {_placement(row)}"))
    if row["ttft_s"] is not None:
        predicted = row["predicted_ttft_s"]
        said = "" if predicted is None else f" (predicted {predicted:.3f} s after its placement)"
        steps.append((row["ttft_s"], f"first token{said}"))
    pace = "" if row["tpot_s"] is None else f", {row['tpot_s'] * 1_000:.1f} ms a token"
    steps.append((row["duration_s"], f"ended{pace}"))
    return steps


def _placement(row: Answer) -> str:
    told = [str(row["placement_reason"])]
    if row["candidates"] is not None:
        told.append(f"one of {row['candidates']} that could")
    if row["hit_tokens"]:
        told.append(f"thought to hold {row['hit_tokens']:,} tokens of it")
    return ", ".join(told)


def _input(row: Answer) -> str:
    return f"{row['prompt_tokens']:,} tokens, {row['cached_tokens']:,} of them cached"


def _output(row: Answer) -> str:
    told = f"{row['completion_tokens']:,} tokens"
    if row["reasoning_tokens"]:
        told += f", {row['reasoning_tokens']:,} of them reasoning"
    return told + (", estimated" if row["estimated"] else "")


def _unbilled(attempt: Answer) -> str:
    tokens = attempt["prompt_tokens"] + attempt["completion_tokens"]
    return f"{tokens:,} tokens on {attempt['worker']}: {attempt['reason'].replace('_', ' ')}"


def _totals(sums: Answer) -> list[str]:
    counts = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    return [
        *(f"{sums[name]:,}" for name in counts),
        f"{sums['estimated_requests']:,}",
        sums["cost"],
    ]


def _shown(name: str, value: Any) -> str:  # noqa: ANN401 - text, or a time
    if name in _TIMES:
        return datetime.fromtimestamp(value, UTC).strftime(_TIMES[name])
    return str(value)


def _moment(ts_us: int) -> str:
    return datetime.fromtimestamp(ts_us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid
