"""Endpoints that tell about the engine or change it, and the fake's own two."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson

from tests.fake_engine.embeddings import embed
from tests.fake_engine.engine import Engine
from tests.fake_engine.faults import UnknownFault
from tests.fake_engine.recorded import json_object
from tests.fake_engine.tokens import chat_prompt, encode
from tests.fake_engine.wire import Exchange

_FLUSHED = (
    b"Cache flushed.\nPlease check backend logs for more details. (When there are running or "
    b"waiting requests, the operation will not be performed.)\n"
)


class Control:
    """Handlers by name; see routes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _card(self) -> dict[str, Any]:
        options = self._engine.options
        return {
            "id": options.model,
            "object": "model",
            "created": int(datetime.now(UTC).timestamp()),
            "owned_by": "sglang",
            "root": options.model,
            "parent": None,
            "max_model_len": options.context_length,
        }

    async def models(self, exchange: Exchange) -> None:
        base = self._card()
        adapters = [
            {**base, "id": name, "root": path, "parent": base["id"], "max_model_len": None}
            for name, path in self._engine.adapters.loaded.items()
        ]
        exchange.respond_json(200, {"object": "list", "data": [base, *adapters]})

    async def load_adapter(self, exchange: Exchange) -> None:
        body = orjson.loads(exchange.body)
        exchange.respond_json(*self._engine.adapters.load(body["lora_name"], body["lora_path"]))

    async def unload_adapter(self, exchange: Exchange) -> None:
        name = orjson.loads(exchange.body)["lora_name"]
        exchange.respond_json(*self._engine.adapters.unload(name))

    async def model(self, exchange: Exchange) -> None:
        name = exchange.path.removeprefix("/v1/models/")
        if name == self._engine.options.model:
            exchange.respond_json(200, self._card())
            return
        problem = {
            "message": f"The model '{name}' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        exchange.respond_json(404, {"error": problem})

    def _settings(self) -> dict[str, Any]:
        options = self._engine.options
        return {
            "model_path": options.model_path,
            "tokenizer_path": options.model_path,
            "context_length": options.context_length,
            "max_running_requests": options.max_running_requests,
            "max_queued_requests": options.max_queued_requests,
            "max_total_tokens": options.max_total_tokens,
            "chunked_prefill_size": options.chunked_prefill_size,
            "enable_priority_scheduling": options.priority_scheduling,
            "default_priority_value": options.default_priority,
            "priority_scheduling_preemption_threshold": options.preemption_threshold,
            "page_size": options.page_size,
            "stream_interval": options.stream_interval,
            "disaggregation_mode": options.disaggregation_mode,
            "disaggregation_bootstrap_port": options.bootstrap_port,
            "host": options.host,
            "port": options.port,
            "served_model_name": options.model,
            "weight_version": self._engine.weight_version,
            "enable_cache_report": options.cache_report,
            "tool_call_parser": options.tool_call_parser,
            "enable_metrics": options.metrics,
            "load_snapshot_publish_interval": options.snapshot_interval,
        }

    async def model_info(self, exchange: Exchange) -> None:
        info, settings = json_object("model_info"), self._settings()
        info.update({key: value for key, value in settings.items() if key in info})
        info["is_generation"] = not self._engine.options.is_embedding
        exchange.respond_json(200, info)

    async def server_info(self, exchange: Exchange) -> None:
        info, settings = json_object("server_info"), self._settings()
        options = self._engine.options
        info.update(settings)
        info["max_total_num_tokens"] = options.max_total_tokens
        for state in info["internal_states"]:
            state.update({key: value for key, value in settings.items() if key in state})
            state["memory_usage"]["token_capacity"] = options.max_total_tokens
            state["effective_max_running_requests_per_dp"] = options.max_running_requests
        exchange.respond_json(200, info)

    async def tokenize(self, exchange: Exchange) -> None:
        body = orjson.loads(exchange.body)
        length = self._engine.options.context_length
        ids: Any
        if body.get("messages") is not None:
            ids = chat_prompt(body["messages"])
        elif isinstance(body.get("prompt"), list):
            ids = [encode(text) for text in body["prompt"]]
        else:
            ids = encode(str(body.get("prompt", "")))
        many = bool(ids) and isinstance(ids[0], list)
        count = [len(one) for one in ids] if many else len(ids)
        exchange.respond_json(200, {"tokens": ids, "count": count, "max_model_len": length})

    async def abort(self, exchange: Exchange) -> None:
        body = orjson.loads(exchange.body or b"{}")
        if self._engine.faults.find("ignore_abort") is None:
            if body.get("abort_all"):
                self._engine.abort_everything()
            elif body.get("rid"):
                self._engine.abort(str(body["rid"]))
        exchange.respond(200, b"", None)

    async def flush_cache(self, exchange: Exchange) -> None:
        if not self._engine.scheduler.idle:
            exchange.respond(400, b"Flush cache failed.\n", None)
            return
        self._engine.scheduler.cache.flush()
        exchange.respond(200, _FLUSHED, None)

    async def pause(self, exchange: Exchange) -> None:
        if orjson.loads(exchange.body or b"{}").get("mode") == "abort":
            self._engine.abort_everything()
        self._engine.paused = True
        self._engine.refreeze()
        told = {"message": "Generation paused successfully.", "status": "ok"}
        exchange.respond_json(200, told)

    async def resume(self, exchange: Exchange) -> None:
        self._engine.paused = False
        self._engine.refreeze()
        told = {"message": "Generation continued successfully.", "status": "ok"}
        exchange.respond_json(200, told)

    async def weight_version(self, exchange: Exchange) -> None:
        version = str(orjson.loads(exchange.body)["new_version"])
        self._engine.weight_version = version
        told = {
            "success": True,
            "message": f"Weight version updated to {version}",
            "new_version": version,
        }
        exchange.respond_json(200, told)

    async def embeddings(self, exchange: Exchange) -> None:
        await embed(self._engine, exchange)

    async def fault(self, exchange: Exchange) -> None:
        """Arm one fault or a list of them at run time."""
        spec = orjson.loads(exchange.body)
        try:
            for one in spec if isinstance(spec, list) else [spec]:
                self._engine.faults.arm(one)
        except UnknownFault as problem:
            exchange.respond_json(400, {"error": str(problem)})
            return
        self._engine.refreeze()
        exchange.respond_json(200, {"armed": self._engine.faults.state()})

    async def stats(self, exchange: Exchange) -> None:
        """What happened here, for tests."""
        engine = self._engine
        metrics, scheduler = engine.metrics, engine.scheduler
        exchange.respond_json(
            200,
            {
                "running": len(scheduler.running),
                "waiting": len(scheduler.waiting),
                "live": sorted(engine.live),
                "aborted": engine.seen.aborted,
                "disconnected": engine.seen.disconnected,
                "prefill_computed_tokens": metrics.prefill_uncached,
                "prefill_cached_tokens": metrics.prefill_cached,
                "prompt_tokens": metrics.total("prompt_tokens_total"),
                "cached_tokens": metrics.total("cached_tokens_total"),
                "completion_tokens": metrics.total("generation_tokens_total"),
                "kv_used": scheduler.cache.used,
                "kv_evictable": scheduler.cache.evictable,
                "retractions": metrics.retractions,
                "steps": scheduler.steps,
                "counts": dict(engine.seen.counts),
                "requests": list(engine.seen.requests),
                "faults": engine.faults.state(),
            },
        )
