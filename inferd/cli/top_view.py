"""What `inferd top` shows. Pure."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferd.cli.rates import Look, per_second, quantile
from inferd.cli.status_view import STYLES, duration, worker_table

Answer = dict[str, Any]

_MEDIAN, _MOST = 0.5, 0.95


def speeds(now: Look, before: Look) -> Answer:
    """Tokens and requests a second and how soon they come, by model and by team."""
    return {
        "seconds": now.at - before.at,
        "models": [_of_model(now, before, model) for model in sorted(_known(now, "model"))],
        "teams": [_of_team(now, before, team) for team in sorted(_known(now, "team"))],
    }


def top_view(answer: Answer) -> RenderableType:
    """One screen."""
    status = answer["status"]
    head = Text.assemble(
        (f"inferd {status['version']}", "bold"),
        f"  {status['state']}, up {duration(status['uptime_s'])},"
        f" {status['requests_in_flight']:,} requests in flight",
        ("   q quits, space pauses", "dim"),
    )
    workers = [worker for pool in status["pools"] for worker in pool["workers"]]
    parts: list[RenderableType] = [
        head,
        Text(),
        _pools(status["pools"]),
        Text(),
        _models(answer["models"]),
    ]
    return Group(*parts, Text(), worker_table(workers), Text(), _teams(answer, status["teams"]))


def _known(look: Look, label: str) -> set[str]:
    return look.values("inferd_requests_total", label)


def _of_model(now: Look, before: Look, model: str) -> Answer:
    def late(name: str, share: float) -> float | None:
        return quantile(now, before, f"inferd_{name}_seconds", share, model=model)

    return {
        "model": model,
        "requests_per_s": per_second(now, before, "inferd_requests_total", model=model),
        "prompt_tokens_per_s": per_second(now, before, "inferd_prompt_tokens_total", model=model),
        "output_tokens_per_s": per_second(
            now, before, "inferd_completion_tokens_total", model=model
        ),
        "ttft_p50_s": late("ttft", _MEDIAN),
        "ttft_p95_s": late("ttft", _MOST),
        "tpot_p50_s": late("time_per_output_token", _MEDIAN),
        "tpot_p95_s": late("time_per_output_token", _MOST),
    }


def _of_team(now: Look, before: Look, team: str) -> Answer:
    spent = {
        kind: now.total("inferd_budget_used_ratio", team=team, kind=kind)
        for kind in now.values("inferd_budget_used_ratio", "kind")
        if now.total("inferd_budget_used_ratio", team=team, kind=kind)
    }
    return {
        "team": team,
        "requests_per_s": per_second(now, before, "inferd_requests_total", team=team),
        "refused_per_s": per_second(
            now, before, "inferd_requests_total", team=team, outcome="refused"
        ),
        "output_tokens_per_s": per_second(now, before, "inferd_completion_tokens_total", team=team),
        "cost_per_hour": 3_600 * per_second(now, before, "inferd_cost_total", team=team),
        "budget_used": max(spent.values(), default=None),
    }


def _pools(pools: list[Answer]) -> Table:
    table = _table("pool", "state", "waiting", "batch", "oldest wait", "slots busy")
    for pool in pools:
        busy = sum(worker["inflight"] for worker in pool["workers"])
        slots = sum(worker["inflight_max"] for worker in pool["workers"])
        table.add_row(
            pool["pool"],
            Text(pool["state"], STYLES.get(pool["state"], "yellow")),
            f"{pool['waiting']['interactive']:,}",
            f"{pool['waiting']['batch']:,}",
            f"{pool['oldest_wait_s']:.1f} s" if any(pool["waiting"].values()) else "",
            f"{busy:,}/{slots:,}",
        )
    return table


def _models(models: list[Answer]) -> Table:
    table = _table(
        *("model", "requests/s", "input tok/s", "output tok/s"),
        *("TTFT p50", "p95", "ms a token p50", "p95"),
    )
    for one in models:
        table.add_row(
            one["model"],
            f"{one['requests_per_s']:,.1f}",
            f"{one['prompt_tokens_per_s']:,.0f}",
            f"{one['output_tokens_per_s']:,.0f}",
            _seconds(one["ttft_p50_s"]),
            _seconds(one["ttft_p95_s"]),
            _milliseconds(one["tpot_p50_s"]),
            _milliseconds(one["tpot_p95_s"]),
        )
    return table


def _teams(answer: Answer, states: list[Answer]) -> Table:
    table = _table(
        *("team", "requests/s", "refused/s", "output tok/s", "cost/hour", "budget", "tokens left")
    )
    left = {state["team"]: state["tokens_left"] for state in states}
    for one in answer["teams"]:
        tokens = left.get(one["team"])
        table.add_row(
            one["team"],
            f"{one['requests_per_s']:,.1f}",
            f"{one['refused_per_s']:,.1f}",
            f"{one['output_tokens_per_s']:,.0f}",
            f"{one['cost_per_hour']:,.2f}",
            "" if one["budget_used"] is None else f"{one['budget_used']:.0%}",
            "no limit" if tokens is None else f"{tokens:,}",
        )
    return table


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value * 1_000:.0f}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table
