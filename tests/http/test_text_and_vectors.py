"""Completions and embeddings as the SDK sees them, through real sockets, from fake engines."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from inferd.inference import Endpoint
from tests.fakes.engines import fake_engine
from tests.fakes.gateway import MODEL, gateway

pytestmark = pytest.mark.real_time

EMBEDDING = """
kind = "embedding"
vocabulary_tokens = 49_152
"""


async def test_completions_streamed_and_not_with_many_prompts(tmp_path: Path) -> None:
    async with (
        fake_engine(tmp_path, model=MODEL, speed=100) as engine,
        gateway(tmp_path, {engine.base_url: 8}) as inferd,
    ):
        client = openai.AsyncOpenAI(base_url=f"{inferd.base_url}/v1", api_key=inferd.key)
        async with client:
            whole = await client.completions.create(
                model=MODEL, prompt=["Once", "Twice"], n=2, max_tokens=4, echo=True, logprobs=1
            )
            stream = await client.completions.create(
                model=MODEL,
                prompt="Once",
                max_tokens=4,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
        assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
        assert whole.choices[3].text.startswith("Twice")
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (2, 16)
        assert chunks[-2].choices[0].finish_reason == "length"
        assert chunks[-1].usage is not None
        newest, first = await inferd.rows()
        assert (first.endpoint, first.prompt_tokens, first.completion_tokens) == (
            Endpoint.COMPLETIONS,
            2,
            16,
        )
        assert newest.response_id == chunks[0].id
        inferd.assert_at_rest()


async def test_embeddings_and_nothing_else_reach_a_worker_that_embeds(tmp_path: Path) -> None:
    async with (
        fake_engine(tmp_path, "--is-embedding", model=MODEL, speed=100) as engine,
        gateway(tmp_path, {engine.base_url: 8}, model=EMBEDDING) as inferd,
    ):
        client = openai.AsyncOpenAI(
            base_url=f"{inferd.base_url}/v1", api_key=inferd.key, max_retries=0
        )
        async with client:
            packed = await client.embeddings.create(model=MODEL, input=["one", "two"])
            plain = await client.embeddings.create(
                model=MODEL, input=["one", "two"], encoding_format="float"
            )
            with pytest.raises(openai.BadRequestError, match="kind 'embedding'"):
                await client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "hi"}]
                )
            with pytest.raises(openai.BadRequestError, match="kind 'embedding'"):
                await client.completions.create(model=MODEL, prompt="hi")
            with pytest.raises(openai.BadRequestError, match="is not a token"):
                await client.embeddings.create(model=MODEL, input=[49_152])
            models = await client.models.list()
        assert packed.data[1].embedding == pytest.approx(plain.data[1].embedding)
        assert packed.usage.prompt_tokens == 2
        assert models.data[0].model_dump()["kind"] == "embedding"
        newest, _first = await inferd.rows()
        assert (newest.endpoint, newest.prompt_tokens, newest.completion_tokens) == (
            Endpoint.EMBEDDINGS,
            2,
            0,
        )
        inferd.assert_at_rest()


async def test_an_attached_worker_of_the_wrong_kind_is_never_used(tmp_path: Path) -> None:
    async with (
        fake_engine(tmp_path, "--is-embedding", model=MODEL, speed=100) as engine,
        gateway(tmp_path, {engine.base_url: 8}, ready=0) as inferd,
        inferd.http.get(f"{inferd.base_url}/readyz") as answer,
    ):
        assert answer.status == 503
