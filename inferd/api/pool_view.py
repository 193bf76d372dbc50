"""One pool as `GET /admin/v1/pools` and `inferd pools` show it: what it is, and how it stands."""

from __future__ import annotations

from typing import Any

from inferd.config.schema import Model
from inferd.config.version import Version
from inferd.workers.spec import Side


def pool_in_words(model: Model, version: Version, status: dict[str, Any]) -> dict[str, Any]:
    """`status` is the pool's part of the node's status."""
    workers = status["workers"]
    wanted = version.workers.count + len(version.attached)
    prefill = version.split.prefill_workers if version.split else 0
    return {
        "pool": status["pool"],
        "model": model.name,
        "version": version.version,
        "default": version.version == model.default_version,
        "kind": model.kind,
        "state": status["state"],
        "context_tokens_max": version.context_tokens_max or model.context_tokens_max,
        "kv_dtype": version.engine.kv_dtype,
        "quantization": version.engine.quantization,
        "takes": version.takes.model_dump(mode="json") if version.takes else None,
        "split": version.split.model_dump(mode="json") if version.split else None,
        "workers_wanted": wanted + prefill,
        "workers_ready": sum(worker["state"] == "ready" for worker in workers),
        "sides": _sides(workers, {Side.PREFILL: prefill, Side.DECODE: wanted}) if prefill else None,
        "inflight": sum(worker["inflight"] for worker in workers),
        "outstanding_tokens": sum(worker["outstanding_tokens"] for worker in workers),
        "waiting": status["waiting"],
        "adapters": [
            {
                "name": adapter.name,
                "weights": adapter.weights,
                "workers": {
                    worker["worker"]: worker["adapters"][adapter.name]
                    for worker in workers
                    if adapter.name in worker["adapters"]
                },
            }
            for adapter in version.adapters
        ],
        "workers": [worker["worker"] for worker in workers],
    }


def _sides(workers: list[dict[str, Any]], wanted: dict[Side, int]) -> dict[str, Any]:
    return {
        side.value: {
            "wanted": count,
            "ready": sum(one["state"] == "ready" and one["side"] == side for one in workers),
            "inflight": sum(one["inflight"] for one in workers if one["side"] == side),
        }
        for side, count in wanted.items()
    }
