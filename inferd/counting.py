"""What a settled row adds to the metrics and tells its span. Owns nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferd.metrics import Metrics
from inferd.routing.admission import ttft_target_s
from inferd.storage.usage import UsageRow

if TYPE_CHECKING:
    from inferd.config.schema import Targets


def count(row: UsageRow, metrics: Metrics, targets: Targets | None) -> None:
    """Add a row to the metrics; `targets` is what its model's users may expect."""
    traffic = metrics.traffic[row.team, row.model, row.version]
    traffic.requests[row.outcome].inc()
    if row.prompt_tokens:
        if row.cached_tokens:
            traffic.prompt_tokens_cached.inc(row.cached_tokens)
        traffic.prompt_tokens_computed.inc(row.prompt_tokens - row.cached_tokens)
        traffic.completion_tokens.inc(row.completion_tokens)
    if row.cost_pico:
        traffic.cost.inc(row.cost_pico / 1e12)
    if row.estimated:
        traffic.estimated.inc()
    if row.placement_reason is not None:
        pool = metrics.pool[row.pool]
        pool.queue_wait[row.priority].observe(row.queue_wait_s)
        pool.placements[row.placement_reason].inc()
    model = metrics.model[row.model, row.version]
    if row.ttft_s is not None:
        model.ttft_s.observe(row.ttft_s)
        if targets is not None:
            met = row.ttft_s <= ttft_target_s(targets, row.prompt_tokens)
            (model.met if met else model.missed)["ttft"].inc()
    if row.tpot_s is not None:
        model.time_per_output_token_s.observe(row.tpot_s)
        if targets is not None:
            met = row.tpot_s <= targets.tpot_ms / 1_000
            (model.met if met else model.missed)["tpot"].inc()


def told(row: UsageRow) -> dict[str, str | int | float | bool]:
    """What a request's span says of it: no text, and nothing that is unknown."""
    return {
        "inferd.request_id": row.request_id,
        "inferd.team": row.team,
        "inferd.priority": row.priority,
        "inferd.outcome": row.outcome,
        "inferd.queue_wait_s": row.queue_wait_s,
        "inferd.attempts": row.attempts,
        "inferd.estimated": row.estimated,
        "gen_ai.request.model": row.model,
        "gen_ai.usage.input_tokens": row.prompt_tokens,
        "gen_ai.usage.output_tokens": row.completion_tokens,
        "inferd.cached_tokens": row.cached_tokens,
        **({} if row.ttft_s is None else {"inferd.ttft_s": row.ttft_s}),
        **({} if row.error_code is None else {"error.type": row.error_code}),
    }
