"""MT-bench's 80 two-turn conversations through the SDK on the real engine, billed to the token.

Every prompt of them is also counted by the model's own tokenizer here: the same to the token.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import cache
from pathlib import Path

import openai
import orjson
import pytest
from openai.types.chat import ChatCompletionMessageParam

from inferd.quota.model_tokenizer import ModelTokenizer
from tests.fakes.engines import DEMO_MODEL
from tests.fakes.served import MODEL, Served, ServeProcess, engine_tokens, using

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.real_time(timeout_s=420)]

QUESTIONS = Path(__file__).parents[1] / "data" / "mt_bench_questions.jsonl"
IN_FLIGHT = 8
OUTPUT_TOKENS = 24
ANY_EOS = {"ignore_eos": True}
"""Random weights may end an answer before its first word."""


async def test_every_turn_is_answered_cached_and_billed_as_the_engine_counts(
    plain_inferd: ServeProcess,
) -> None:
    conversations = [orjson.loads(line)["turns"] for line in QUESTIONS.read_bytes().splitlines()]
    assert len(conversations) == 80
    async with using(plain_inferd) as inferd:
        await inferd.at_rest()
        before, rows_before = await engine_tokens(inferd), len(inferd.rows())
        told: Counter[str] = Counter()
        places = asyncio.Semaphore(IN_FLIGHT)
        client = openai.AsyncOpenAI(base_url=inferd.base_url, api_key=inferd.key, max_retries=0)
        async with client, asyncio.TaskGroup() as group:
            for number, turns in enumerate(conversations):
                group.create_task(conversation(client, turns, told, places, stream=number % 2 == 0))
        await inferd.at_rest()
        assert "counted exactly where an estimate decides" in inferd.log
        after = await engine_tokens(inferd)
        assert_the_books_agree(inferd, rows_before, told, before, after)


def assert_the_books_agree(
    inferd: Served,
    rows_before: int,
    told: Counter[str],
    before: dict[str, float],
    after: dict[str, float],
) -> None:
    """Clients, ledger and engine have counted the same tokens."""
    rows = inferd.rows()[rows_before:]
    assert len(rows) == 160
    assert {row.outcome for row in rows} == {"completed"}
    ledger = Counter(
        prompt=sum(row.prompt_tokens for row in rows),
        completion=sum(row.completion_tokens for row in rows),
        cached=sum(row.cached_tokens for row in rows),
    )
    assert ledger == told
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["prompt_tokens_total"] == ledger["prompt"]
    assert grown["generation_tokens_total"] == ledger["completion"]
    assert grown["cached_tokens_total"] == ledger["cached"]


async def conversation(
    client: openai.AsyncOpenAI,
    turns: list[str],
    told: Counter[str],
    places: asyncio.Semaphore,
    *,
    stream: bool,
) -> None:
    """Two turns in sequence; the second must find the first in the prefix cache."""
    messages: list[ChatCompletionMessageParam] = []
    counted = tokenizer()
    async with places:
        for number, turn in enumerate(turns):
            messages.append({"role": "user", "content": turn})
            text, usage = await (streamed if stream else whole)(client, messages)
            assert text
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            cached = usage.prompt_tokens_details.cached_tokens or 0
            assert number == 0 or cached > 0
            assert counted.count_chat(plain(messages)) == usage.prompt_tokens
            told["prompt"] += usage.prompt_tokens
            told["completion"] += usage.completion_tokens
            told["cached"] += cached
            messages.append({"role": "assistant", "content": text})


@cache
def tokenizer() -> ModelTokenizer:
    return ModelTokenizer.of_folder(DEMO_MODEL)


def plain(messages: list[ChatCompletionMessageParam]) -> list[dict[str, str]]:
    return [{"role": one["role"], "content": str(one.get("content"))} for one in messages]


async def whole(
    client: openai.AsyncOpenAI, messages: list[ChatCompletionMessageParam]
) -> tuple[str, openai.types.CompletionUsage | None]:
    answer = await client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=OUTPUT_TOKENS, extra_body=ANY_EOS
    )
    return answer.choices[0].message.content or "", answer.usage


async def streamed(
    client: openai.AsyncOpenAI, messages: list[ChatCompletionMessageParam]
) -> tuple[str, openai.types.CompletionUsage | None]:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_tokens=OUTPUT_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=ANY_EOS,
    )
    text, usage = "", None
    async for chunk in stream:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    return text, usage
