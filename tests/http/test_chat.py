"""A chat completion as a client sees it, through real sockets, from the fake engine."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest
from tests.fakes.engines import fake_engine
from tests.fakes.gateway import MODEL, gateway

pytestmark = pytest.mark.real_time

HELLO = [{"role": "user", "content": "Say hello."}]


async def test_the_openai_sdk_works_streamed_and_not(tmp_path: Path) -> None:
    async with fake_engine(tmp_path, speed=100) as engine, gateway(tmp_path, {engine.base_url: 8}) as inferd:
        client = openai.AsyncOpenAI(base_url=f"{inferd.base_url}/v1", api_key=inferd.key)
        async with client:
            whole = await client.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=8, temperature=0
            )
            stream = await client.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=8, temperature=0, stream=True
            )
            chunks = [chunk async for chunk in stream]
            models = await client.models.list()
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.choices[0].message.content
        assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
        assert [model.id for model in models.data] == [MODEL]
        newest, first = await inferd.rows()
        assert whole.usage is not None
        assert (first.prompt_tokens, first.completion_tokens) == (
            whole.usage.prompt_tokens,
            whole.usage.completion_tokens,
        )
        assert newest.cached_tokens > 0
        inferd.assert_at_rest()
