"""What a gateway polls: /ready, /health, /v1/loads, /metrics."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from tests.fake_engine.answers import fixed
from tests.fake_engine.calls import Quiet
from tests.fake_engine.engine import Engine
from tests.fake_engine.exposition import render
from tests.fake_engine.recorded import json_object
from tests.fake_engine.scheduler import Generation
from tests.fake_engine.wire import Exchange

VERSION = "0.5.23"
HEALTH_STEP_S = 1.0
HEALTH_TIMEOUT_S = 20.0
_BLOCKED_POLL_S = 0.005
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_SECTIONS = {"memory": "memory", "disagg": "disaggregation", "queues": "queues"}
_GROUPS = {"memory": "memory_", "disaggregation": "disagg_", "queues": "queues_"}


class Probes:
    """Handlers; none of them changes anything but /health, which makes a token."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._snapshot_step = 0
        self._snapshot: dict[str, Any] = {}

    async def ready(self, exchange: Exchange) -> None:
        await self._blocked()
        up = self._engine.healthy and not self._engine.paused
        exchange.respond(200 if up else 503, b"", None)

    async def ping(self, exchange: Exchange) -> None:
        exchange.respond(200 if self._engine.healthy else 503, b"", None)

    async def health(self, exchange: Exchange) -> None:
        engine = self._engine
        if not engine.started or engine.draining:
            exchange.respond(503, b"", None)
            return
        await self._blocked()
        engine.unhealthy = not await self._alive()
        exchange.respond(503 if engine.unhealthy else 200, b"", None)

    async def _alive(self) -> bool:
        """Did any token come out since we asked? An idle engine is made to produce one."""
        engine, loop = self._engine, asyncio.get_running_loop()
        if engine.faults.find("frozen") is not None:
            await asyncio.sleep(engine.options.scaled(HEALTH_STEP_S))
            return True
        asked = loop.time()
        probe = Generation(
            rid=f"HEALTH_CHECK_{engine.new_rid()}",
            prompt=[0],
            script=fixed("ok", 0),
            max_new=1,
            priority=engine.options.priority(None),
            sink=Quiet(engine),
            probe=True,
        )
        if engine.scheduler.quiet:
            engine.submit(probe)
        while loop.time() < asked + engine.options.scaled(HEALTH_TIMEOUT_S):
            await asyncio.sleep(engine.options.scaled(HEALTH_STEP_S))
            if engine.scheduler.last_output_at >= asked:
                return True
        engine.live.pop(probe.rid, None)
        return False

    async def loads(self, exchange: Exchange) -> None:
        await self._blocked()
        include = exchange.query.get("include", ["all"])[0].split(",")
        wanted = {_SECTIONS[name] for name in include if name in _SECTIONS}
        everything = "all" in include
        published = self._published()
        load = {
            name: value
            for name, value in published.items()
            if everything or name in wanted or not isinstance(value, dict)
        }
        if exchange.query.get("format") == ["prometheus"]:
            exchange.respond(200, _prometheus(load).encode(), _PROMETHEUS)
            return
        body = {
            "timestamp": datetime.now(UTC).isoformat(),
            "version": VERSION,
            "accelerator": None,
            "num_accelerators": 1,
            "loads": [load],
        }
        exchange.respond_json(200, body)

    async def metrics(self, exchange: Exchange) -> None:
        engine = self._engine
        if not engine.options.metrics:
            exchange.respond_json(404, {"detail": "Not Found"})
            return
        text = render(engine.metrics, engine.scheduler, engine.options)
        exchange.begin_stream(_PROMETHEUS, spelled="Content-Type")
        exchange.write(text.encode())
        exchange.end_stream()

    def _published(self) -> dict[str, Any]:
        """The load as last published: every N steps, and whenever the engine is idle."""
        scheduler, options = self._engine.scheduler, self._engine.options
        age = scheduler.steps - self._snapshot_step
        if not self._snapshot or scheduler.idle or age >= options.snapshot_interval:
            self._snapshot_step = scheduler.steps
            self._snapshot = self._measure()
        return self._snapshot

    def _measure(self) -> dict[str, Any]:
        scheduler, metrics = self._engine.scheduler, self._engine.metrics
        cache, waiting = scheduler.cache, scheduler.waiting
        uncached = sum(len(one.prompt) for one in waiting)
        load: dict[str, Any] = json_object("v1_loads_idle")["loads"][0]
        load.update(
            timestamp=datetime.now(UTC).timestamp(),
            num_running_reqs=len(scheduler.running),
            num_waiting_reqs=len(waiting),
            num_waiting_uncached_tokens=uncached,
            num_used_tokens=cache.used,
            num_total_tokens=cache.used + uncached,
            num_active_tokens=cache.used + uncached,
            max_total_num_tokens=cache.capacity,
            max_running_requests=self._engine.options.max_running_requests,
            token_usage=round(cache.used / cache.capacity, 4),
            gen_throughput=round(metrics.throughput, 2) if scheduler.running else 0.0,
            cache_hit_rate=round(metrics.cache_hit_rate, 4),
            total_prefill_uncached_tokens=metrics.prefill_uncached,
            total_prefill_busy_us=metrics.prefill_busy_us,
        )
        load["memory"]["token_capacity"] = cache.capacity
        load["queues"]["waiting"] = len(waiting)
        load["queues"]["retracted"] = sum(1 for one in waiting if one.retractions)
        return load

    async def _blocked(self) -> None:
        """A server whose loop is busy with a long prompt answers no probe meanwhile."""
        while self._engine.faults.find("block_probes") is not None:
            if all(one.decoding for one in self._engine.scheduler.running):
                return
            await asyncio.sleep(_BLOCKED_POLL_S)


def _prometheus(load: dict[str, Any]) -> str:
    rows: list[str] = []
    for name, value in load.items():
        group = value if isinstance(value, dict) else {name: value}
        for key, number in group.items():
            if key == "dp_rank" or isinstance(number, str | list) or number is None:
                continue
            metric = f"sglang_{_GROUPS.get(name, '')}{key}"
            rows += [f"# TYPE {metric} gauge", f'{metric}{{dp_rank="0"}} {number}']
    return "\n".join(rows) + "\n"
