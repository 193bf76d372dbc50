"""pydantic-ai: agents with text, streams, tool output and native output."""

from __future__ import annotations

import asyncio
from typing import Literal

from probing import API_KEY, BASE_URL, MODEL, check, done
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

MODEL_OBJECT = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key=API_KEY))
SHORT = {"max_tokens": 64}


class City(BaseModel):
    name: Literal["Paris", "Rome"]


@check
def text():
    result = Agent(MODEL_OBJECT).run_sync("Say hello", model_settings=SHORT)
    assert result.output


@check
def stream():
    async def read():
        agent = Agent(MODEL_OBJECT)
        async with agent.run_stream("Say hello", model_settings=SHORT) as result:
            parts = [part async for part in result.stream_text(delta=True)]
        assert "".join(parts)

    asyncio.run(read())


@check
def tool_output():
    result = Agent(MODEL_OBJECT, output_type=City).run_sync("A city", model_settings=SHORT)
    assert result.output.name in {"Paris", "Rome"}


@check
def native_output():
    agent = Agent(MODEL_OBJECT, output_type=NativeOutput(City))
    assert agent.run_sync("A city", model_settings=SHORT).output.name in {"Paris", "Rome"}


done()
