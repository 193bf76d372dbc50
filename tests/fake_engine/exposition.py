"""The text of /metrics: the real server's families in its order.

Computed ones carry the fake's numbers, other gauges stand at zero, other counters and histograms
are left out, as they are on a server where nothing of the kind has happened.
"""

from __future__ import annotations

from tests.fake_engine.metrics import Histogram, Labels, Metrics
from tests.fake_engine.options import Options
from tests.fake_engine.recorded import RECORDED_MODEL, Family, metric_families
from tests.fake_engine.scheduler import Scheduler

_PREFIX = "sglang:"


def render(metrics: Metrics, scheduler: Scheduler, options: Options) -> str:
    """The whole exposition."""
    gauges = _gauges(metrics, scheduler, options)
    lines: list[str] = []
    for family in metric_families():
        name = family.name.removeprefix(_PREFIX)
        if name in gauges:
            rows = gauges[name]
        elif name in metrics.histograms:
            rows = [
                row
                for labels, histogram in metrics.histograms[name].items()
                for row in _histogram_rows(family.name, labels, histogram)
            ]
        elif name in metrics.counters:
            rows = [
                f"{family.name}{_show(labels)} {float(value)}"
                for labels, value in metrics.counters[name].items()
            ]
        else:
            rows = _zeros(family, options) if family.gauge else []
        if rows:
            lines += [*family.comments, *rows]
    return "\n".join(lines) + "\n"


def _zeros(family: Family, options: Options) -> list[str]:
    recorded, ours = f'model_name="{RECORDED_MODEL}"', f'model_name="{options.model}"'
    return [f"{family.name}{labels.replace(recorded, ours)} 0.0" for labels in family.labels]


def _gauges(metrics: Metrics, scheduler: Scheduler, options: Options) -> dict[str, list[str]]:
    cache = scheduler.cache
    values: dict[str, float] = {
        "max_total_num_tokens": cache.capacity,
        "page_size": cache.page,
        "num_pages": cache.capacity // cache.page,
        "context_len": options.context_length,
        "num_running_reqs": len(scheduler.running),
        "num_queue_reqs": len(scheduler.waiting),
        "gen_throughput": metrics.throughput if scheduler.running else 0.0,
        "cache_hit_rate": metrics.cache_hit_rate,
        "decode_sum_seq_lens": sum(one.context for one in scheduler.running),
        "token_usage": round(cache.used / cache.capacity, 4),
        "full_token_usage": round(cache.used / cache.capacity, 4),
        "num_used_tokens": cache.used,
        "kv_available_tokens": cache.free,
        "kv_evictable_tokens": cache.evictable,
        "kv_used_tokens": cache.used,
    }
    ranks = _show(metrics.ranks())
    rows = {name: [f"{_PREFIX}{name}{ranks} {float(value)}"] for name, value in values.items()}
    retracted = sum(1 for one in scheduler.waiting if one.retractions)
    labels = _show(metrics.ranks(pid="1"))
    rows["num_retracted_reqs"] = [f"{_PREFIX}num_retracted_reqs{labels} {float(retracted)}"]
    return rows


def _show(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels)) + "}"


def _histogram_rows(name: str, labels: Labels, histogram: Histogram) -> list[str]:
    bounds = [str(float(bound)) for bound in histogram.buckets]
    rows = [
        f"{name}_bucket{_show((*labels, ('le', bound)))} {float(count)}"
        for bound, count in [
            *zip(bounds, histogram.counts, strict=True),
            ("+Inf", histogram.count),
        ]
    ]
    rows.append(f"{name}_sum{_show(labels)} {histogram.total}")
    rows.append(f"{name}_count{_show(labels)} {float(histogram.count)}")
    return rows
