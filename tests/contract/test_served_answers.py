"""Answers of the real engine through the whole gateway: schemas held, streams equal to whole ones.

A few of what scripts/conformance does with all.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.conformance.questions import LANGUAGES, difference, questions
from tests.conformance.schemas import cases, outcome
from tests.contract.conftest import CONTRACT_KEY, Engines
from tests.fakes.engines import connected
from tests.fakes.gateway import MODEL, gateway

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.real_time(timeout_s=300)]

QUESTIONS = 1
SCHEMAS = 8
SEED = 16
LIMITS = {"context_tokens_max": 2_048, "output_tokens_max": 512}
KEY = "CONTRACT_ENGINE_KEY"


@pytest.fixture
def workers(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The real engine, attached."""
    monkeypatch.setenv(KEY, CONTRACT_KEY)
    engine = engines.get("real")
    one = {"url": engine.base_url, "key_env": KEY, "model": engine.model, "inflight_max": 2}
    return [one]


async def test_a_streams_text_is_that_of_a_whole_answer_in_every_script(
    tmp_path: Path, engines: Engines, workers: list[dict[str, object]]
) -> None:
    async with (
        gateway(tmp_path, workers=workers, ready=1, model=LIMITS) as inferd,
        inferd.openai() as client,
        connected(engines.get("real")) as engine,
    ):

        async def flush() -> None:
            async with engine.http.post(f"{engine.base_url}/flush_cache") as answer:
                assert answer.status == 200

        for language in LANGUAGES:
            for question in questions(language, QUESTIONS):
                assert await difference(client, MODEL, question, flush) is None, question


async def test_schemas_are_honoured_or_refused_by_name(
    tmp_path: Path, workers: list[dict[str, object]]
) -> None:
    chosen = random.Random(SEED).sample(cases(), SCHEMAS)
    async with (
        gateway(tmp_path, workers=workers, ready=1, model=LIMITS) as inferd,
        inferd.openai() as client,
    ):
        found = {case.name: await outcome(client, MODEL, case) for case in chosen}
    assert not [told for told in found.items() if told[1][0] == "wrong"]
    assert Counter(kind for kind, _ in found.values())["honoured"] >= SCHEMAS // 4
