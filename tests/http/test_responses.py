"""The Responses API and token counts as the SDK sees them, through real sockets."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from inferd.inference import Endpoint
from tests.fakes.engines import fake_engine
from tests.fakes.gateway import MODEL, gateway

pytestmark = pytest.mark.real_time


async def test_responses_streamed_and_not_and_their_bill(tmp_path: Path) -> None:
    async with (
        fake_engine(tmp_path, model=MODEL, speed=100) as engine,
        gateway(tmp_path, {engine.base_url: 8}) as inferd,
    ):
        client = openai.AsyncOpenAI(base_url=f"{inferd.base_url}/v1", api_key=inferd.key)
        async with client:
            whole = await client.responses.create(
                model=MODEL, input="[say Hello there]", instructions="Be brief"
            )
            async with client.responses.stream(model=MODEL, input="[say Hello there]") as stream:
                kinds = [event.type async for event in stream]
                final = await stream.get_final_response()
            cut = await client.responses.create(model=MODEL, input="hi", max_output_tokens=3)
            counted = await client.responses.input_tokens.count(model=MODEL, input="hi")
            with pytest.raises(openai.BadRequestError, match="previous_response_id"):
                await client.responses.create(
                    model=MODEL, input="hi", previous_response_id="resp_1"
                )
        assert whole.output_text == final.output_text == "Hello there"
        assert (whole.status, whole.instructions) == ("completed", "Be brief")
        assert kinds[-1] == "response.completed"
        assert cut.incomplete_details is not None
        assert cut.incomplete_details.reason == "max_output_tokens"
        assert cut.usage is not None
        assert counted.input_tokens == cut.usage.input_tokens
        count, third, second, first = await inferd.rows()
        assert (first.endpoint, first.response_id) == (Endpoint.RESPONSES, whole.id)
        assert (second.stream, third.completion_tokens) == (True, 3)
        assert (count.endpoint, count.prompt_tokens) == (Endpoint.INPUT_TOKENS, 0)
        inferd.assert_at_rest()


async def test_a_stream_that_breaks_raises_in_the_sdk(tmp_path: Path) -> None:
    async with (
        fake_engine(
            tmp_path, model=MODEL, speed=20, faults=[{"kind": "cut", "after": 3}]
        ) as engine,
        gateway(tmp_path, {engine.base_url: 8}) as inferd,
    ):
        client = openai.AsyncOpenAI(base_url=f"{inferd.base_url}/v1", api_key=inferd.key)
        kinds = []
        async with client:
            events = await client.responses.create(model=MODEL, input="[tokens 50]", stream=True)

            async def read() -> None:
                async for event in events:
                    kinds.append(event.type)  # noqa: PERF401 - what came before it broke counts

            with pytest.raises(openai.APIError, match="worker"):
                await read()
        assert kinds[-1] == "response.failed"


async def test_texts_become_the_tokens_that_are_billed(tmp_path: Path) -> None:
    async with (
        fake_engine(tmp_path, model=MODEL, speed=100) as engine,
        gateway(tmp_path, {engine.base_url: 8}) as inferd,
        inferd.http.post(
            f"{inferd.base_url}/v1/tokenize",
            json={"model": MODEL, "prompt": ["one two", "three"]},
            headers=inferd.headers,
        ) as answer,
    ):
        body = await answer.json()
        assert body["count"] == [2, 1] == [len(ids) for ids in body["tokens"]]
