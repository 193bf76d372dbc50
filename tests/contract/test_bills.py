"""Usage, cached tokens and counters, on both engines: what the gateway bills from."""

from __future__ import annotations

import orjson
import pytest

from tests.contract.client import Client, Transcript, idle_after
from tests.fakes.engines import EngineProcess

pytestmark = pytest.mark.real_time

COUNTERS = ("prompt_tokens_total", "generation_tokens_total", "cached_tokens_total")


def cached(told: Transcript) -> int:
    value = told.usage["prompt_tokens_details"]["cached_tokens"]
    assert isinstance(value, int)
    return value


async def counters(client: Client) -> list[float]:
    return [await client.counter(name) for name in COUNTERS]


async def test_a_second_turn_finds_the_first_in_the_cache(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        question = {"role": "user", "content": "What do rivers carry to the sea?"}
        first = await client.told({**client.chat(max_tokens=20), "messages": [question]})
        history = [question, {"role": "assistant", "content": first.text}]
        second = await client.told(
            {
                **client.chat(max_tokens=5),
                "messages": [*history, {"role": "user", "content": "And why?"}],
            }
        )
        assert cached(second) >= first.usage["prompt_tokens"] - 1
        assert second.usage["prompt_tokens"] > first.usage["total_tokens"]


async def test_the_same_prompt_again_computes_one_token(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        body = client.chat("An unusual sentence about lighthouses", max_tokens=2)
        first, second = await client.told(body), await client.told(body)
        assert cached(first) < first.usage["prompt_tokens"] - 1
        assert cached(second) == second.usage["prompt_tokens"] - 1


async def test_extra_keys_do_not_share_a_cache(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        body = client.chat("A sentence that two teams send", max_tokens=2)
        assert cached(await client.told({**body, "extra_key": "team-1"})) == 0
        assert cached(await client.told({**body, "extra_key": "team-1"})) > 0
        assert cached(await client.told({**body, "extra_key": "team-2"})) == 0


async def test_counters_grow_by_exactly_the_usage(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        before = await counters(client)
        bills = [
            (await client.told(client.chat(f"Bill number {one}", max_tokens=4 + one))).usage
            for one in range(3)
        ]
        whole = orjson.loads((await client.ask(client.chat("A whole bill", max_tokens=6))).body)
        bills.append(whole["usage"])
        after = await counters(client)
        sums = [
            sum(bill["prompt_tokens"] for bill in bills),
            sum(bill["completion_tokens"] for bill in bills),
            sum(bill["prompt_tokens_details"]["cached_tokens"] for bill in bills),
        ]
        assert [new - old for old, new in zip(before, after, strict=True)] == sums


async def test_health_checks_are_not_billed(shared_engine: EngineProcess) -> None:
    async with idle_after(shared_engine) as client:
        before = await counters(client)
        assert (await client.get("/health")).status == 200
        assert (await client.get("/ready")).status == 200
        assert await counters(client) == before


async def test_many_choices_are_counted_once_in_the_usage_and_more_often_inside(
    shared_engine: EngineProcess,
) -> None:
    """The engine runs the bare prompt first and then once a choice: its counters see n + 1."""
    async with idle_after(shared_engine) as client:
        before = await counters(client)
        body = client.chat("Choose two", n=2, max_tokens=4, ignore_eos=True)
        told = await client.told(body)
        after = await counters(client)
        prompt = told.usage["prompt_tokens"]
        assert after[0] - before[0] == 3 * prompt
        assert after[1] - before[1] == told.usage["completion_tokens"] == 8
        assert cached(told) == prompt - 1
