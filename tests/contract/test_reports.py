"""What an engine says of itself, on both engines: loads, models, settings, metrics."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest

from tests.contract.client import Client, idle_after
from tests.fake_engine.recorded import json_object
from tests.fakes.engines import EngineProcess

pytestmark = pytest.mark.real_time


async def json_of(client: Client, path: str) -> Any:
    answer = await client.get(path)
    assert answer.status == 200
    return orjson.loads(answer.body)


async def test_loads_count_what_runs_and_waits(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client, AsyncExitStack() as stack:
        idle = await client.load()
        assert (idle["num_running_reqs"], idle["num_used_tokens"]) == (0, 0)
        for index in range(3):
            await stack.enter_async_context(client.stream(client.holding(f"One {index}")))
        await client.until(2, 1)
        busy = await client.load()
        assert busy["queues"]["waiting"] == 1
        assert busy["num_waiting_uncached_tokens"] > 0
        assert busy["num_used_tokens"] > 0
        assert 0 < busy["token_usage"] < 1
        assert busy["max_total_num_tokens"] == 4_096
        assert busy["max_running_requests"] == 2
        await client.abort(abort_all=True)


async def test_loads_have_the_recorded_keys_in_both_formats(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        recorded = json_object("v1_loads_idle")
        fresh = await json_of(client, "/v1/loads")
        assert list(fresh) == list(recorded)
        assert list(fresh["loads"][0]) == list(recorded["loads"][0])
        text = (await client.get("/v1/loads?format=prometheus")).text
        values = dict(re.findall(r'^(sglang_\w+)\{dp_rank="0"\} (\S+)$', text, re.MULTILINE))
        assert float(values["sglang_max_total_num_tokens"]) == 4_096
        assert float(values["sglang_num_running_reqs"]) == 0


async def test_models_and_settings(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        (card,) = (await json_of(client, "/v1/models"))["data"]
        assert (card["id"], card["max_model_len"]) == (shared_engine.model, 2_048)
        one = await json_of(client, f"/v1/models/{shared_engine.model}")
        assert list(one) == list(card)
        assert (await client.get("/v1/models/nope")).status == 404
        settings = await json_of(client, "/server_info")
        assert settings["version"] == "0.5.23"
        expected = {
            "context_length": 2_048,
            "max_running_requests": 2,
            "max_queued_requests": 3,
            "max_total_num_tokens": 4_096,
            "chunked_prefill_size": 512,
            "enable_priority_scheduling": True,
            "served_model_name": shared_engine.model,
        }
        assert {name: settings[name] for name in expected} == expected
        assert (await json_of(client, "/model_info"))["served_model_name"] == shared_engine.model


async def test_metrics_know_the_families_a_gateway_reads(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        await client.told(client.chat("Count me", max_tokens=4, ignore_eos=True))
        text = (await client.get("/metrics")).text
        for name in (
            *("num_running_reqs", "num_queue_reqs", "token_usage", "cache_hit_rate"),
            *("kv_used_tokens", "kv_evictable_tokens", "kv_available_tokens"),
            *("prompt_tokens_total", "generation_tokens_total", "num_requests_total"),
            *("time_to_first_token_seconds_count", "inter_token_latency_seconds_sum"),
            *("e2e_request_latency_seconds_bucket", "http_requests_total"),
        ):
            assert re.search(rf"^sglang:{name}\{{", text, re.MULTILINE), name
        labels = f'is_streaming="true",model_name="{shared_engine.model}",priority="0"'
        assert f'sglang:prompt_tokens_total{{engine_type="unified",{labels}}}' in text


async def test_tokenize_counts_like_the_bill(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        body = {"model": shared_engine.model, "prompt": "hello world"}
        counted = orjson.loads((await client.post("/v1/tokenize", body)).body)
        assert (counted["count"], len(counted["tokens"])) == (2, 2)
        assert counted["max_model_len"] == 2_048


async def test_a_flushed_cache_finds_nothing(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        body = client.chat("Something to forget", max_tokens=2)
        await client.told(body)
        assert (await client.get("/flush_cache")).status == 200
        told = await client.told(body)
        assert told.usage["prompt_tokens_details"]["cached_tokens"] == 0
