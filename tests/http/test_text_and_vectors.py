"""Completions and embeddings as the SDK sees them, through real sockets, from fake engines."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from inferd.inference import Endpoint
from inferd.workers.states import WorkerState
from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import MODEL, gateway, until

pytestmark = pytest.mark.real_time

HELLO = [{"role": "user", "content": "hi"}]
EMBEDDING = {"kind": "embedding", "vocabulary_tokens": 49_152}


async def test_completions_streamed_and_not_with_many_prompts(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd, inferd.openai() as client:
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
        first, newest = await inferd.rows()
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.choices[3].text.startswith("Twice")
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (2, 16)
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert (first.endpoint, first.prompt_tokens, first.completion_tokens) == (
        Endpoint.COMPLETIONS,
        2,
        16,
    )
    assert newest.response_id == chunks[0].id


async def test_embeddings_and_nothing_else_reach_a_worker_that_embeds(
    tmp_path: Path, embedder: EngineProcess
) -> None:
    async with (
        gateway(tmp_path, embedder, model=EMBEDDING) as inferd,
        inferd.openai() as client,
    ):
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
        rows = await inferd.rows()
    assert packed.data[1].embedding == pytest.approx(plain.data[1].embedding)
    assert packed.usage.prompt_tokens == 2
    assert models.data[0].model_dump()["kind"] == "embedding"
    for row in rows:
        assert (row.endpoint, row.prompt_tokens, row.completion_tokens) == (
            Endpoint.EMBEDDINGS,
            2,
            0,
        )


async def test_a_chat_model_never_uses_an_attached_worker_that_embeds(
    tmp_path: Path, embedder: EngineProcess
) -> None:
    async with gateway(tmp_path, embedder, ready=0) as inferd:
        (worker,) = inferd.app.node.supervisor.workers.values()
        await until(lambda: worker.state is WorkerState.FAILED)
        assert "its kind is embedding, not chat" in worker.reason
        async with inferd.post({"model": MODEL, "messages": HELLO}) as answer:
            assert answer.status == 503
