"""The Responses API and token counts as the SDK sees them, through real sockets."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from inferd.inference import Endpoint
from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import MODEL, gateway

pytestmark = pytest.mark.real_time


async def test_responses_streamed_and_not_and_their_bill(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd, inferd.openai() as client:
        whole = await client.responses.create(
            model=MODEL, input="[say Hello there]", instructions="Be brief"
        )
        async with client.responses.stream(model=MODEL, input="[say Hello there]") as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        cut = await client.responses.create(model=MODEL, input="hi", max_output_tokens=3)
        counted = await client.responses.input_tokens.count(model=MODEL, input="hi")
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            await client.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")
        first, second, third, count = await inferd.rows()
    assert whole.output_text == final.output_text == "Hello there"
    assert (whole.status, whole.instructions) == ("completed", "Be brief")
    assert kinds[-1] == "response.completed"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    assert cut.usage is not None
    assert counted.input_tokens == cut.usage.input_tokens
    assert (first.endpoint, first.response_id) == (Endpoint.RESPONSES, whole.id)
    assert (second.stream, third.completion_tokens) == (True, 3)
    assert (count.endpoint, count.prompt_tokens) == (Endpoint.INPUT_TOKENS, 0)


async def test_a_stream_that_breaks_raises_in_the_sdk(tmp_path: Path, paced: EngineProcess) -> None:
    kinds: list[str] = []
    async with gateway(tmp_path, paced) as inferd, inferd.openai() as client:
        await inferd.engine.fault("cut", after=3)
        events = await client.responses.create(model=MODEL, input="[tokens 50]", stream=True)

        async def read() -> None:
            async for event in events:
                kinds.append(event.type)  # noqa: PERF401 - what came before it broke counts

        with pytest.raises(openai.APIError, match="worker"):
            await read()
    assert kinds[-1] == "response.failed"


async def test_texts_become_tokens_and_cost_none(tmp_path: Path, fast: EngineProcess) -> None:
    async with (
        gateway(tmp_path, fast) as inferd,
        inferd.http.post(
            f"{inferd.base_url}/v1/tokenize",
            json={"model": MODEL, "prompt": ["one two", "three"]},
            headers=inferd.headers,
        ) as answer,
    ):
        body = await answer.json()
        row = await inferd.row()
    assert body["count"] == [2, 1] == [len(ids) for ids in body["tokens"]]
    assert (row.prompt_tokens, row.completion_tokens) == (0, 0)
