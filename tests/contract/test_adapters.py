"""LoRA adapters and sides of the fake engine, held to what the real one was seen to answer."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.contract.raw_http import RawAnswer, exchange, post_json
from tests.contract.test_recorded_bytes import recorded_answer, recorded_request, same_ends
from tests.contract.wire_template import text_template
from tests.fakes.engines import RunningEngine, fake_engine
from tests.fakes.lora_folder import make_adapter

pytestmark = pytest.mark.real_time

MODEL = "smollm2-135m"
RECORDED = (
    *("lora_load_a", "lora_load_b", "lora_load_dup", "lora_load_missing", "lora_models"),
    *("lora_chat_base", "lora_chat_a", "lora_chat_b_path", "lora_chat_unknown"),
    *("lora_unload_a", "lora_chat_a_after"),
)
PLACE = "/opt/engine"


@asynccontextmanager
async def lora_engine(folder: Path) -> AsyncIterator[RunningEngine]:
    for number, name in enumerate(("lora_a", "lora_b")):
        make_adapter(folder / name, seed=number)
    flags = ("--enable-lora", "--enable-cache-report", "--max-running-requests", "8")
    async with fake_engine(folder, *flags, model=MODEL, speed=100, standard=False) as engine:
        yield engine


async def replay(engine: RunningEngine, folder: Path, name: str) -> RawAnswer:
    method, path, body = recorded_request(name)
    return await exchange(
        engine.port, method, path, body.replace(PLACE.encode(), os.fsencode(folder))
    )


async def test_the_recorded_exchanges_with_adapters_have_their_shape(tmp_path: Path) -> None:
    async with lora_engine(tmp_path) as engine:
        for name in RECORDED:
            got, want = await replay(engine, tmp_path, name), recorded_answer(name)
            ours = same_ends(text_template(got.text.replace(str(tmp_path), PLACE)))
            assert (got.status, ours) == (want.status, same_ends(text_template(want.text))), name


async def test_who_answers_is_the_adapter_that_was_asked_for(tmp_path: Path) -> None:
    async with lora_engine(tmp_path) as engine:
        for name in ("lora_load_a", "lora_load_b"):
            await replay(engine, tmp_path, name)

        async def ask(**more: Any) -> str:
            body = {"messages": [{"role": "user", "content": "Who?"}], **more}
            answer = await post_json(engine.port, "/v1/chat/completions", body)
            text = orjson.loads(answer.body)["choices"][0]["message"]["content"]
            assert isinstance(text, str)
            return text

        assert await ask(lora_path="a") == await ask(model=f"{MODEL}:a") == "I am lora_a."
        assert await ask(lora_path="b") == "I am lora_b."
        assert "lora" not in await ask()


async def test_sides_that_stand_alone_answer_as_recorded(tmp_path: Path) -> None:
    for mode in ("prefill", "decode"):
        flags = ("--disaggregation-mode", mode, "--disaggregation-bootstrap-port", "0")
        async with fake_engine(tmp_path, *flags, model=MODEL, standard=False) as engine:
            name = f"pd_{mode}_no_bootstrap"
            got, want = await replay(engine, tmp_path, name), recorded_answer(name)
            assert got.status == want.status
            assert text_template(got.text) == text_template(want.text)
