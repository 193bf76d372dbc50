"""The decision over two real engines: conversations stay warm, shares are as the weights."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from tests.fakes.decision_rig import conversations, flood, shares
from tests.fakes.two_workers import HEAVY, LIGHT, two_workers

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.real_time(timeout_s=240)]

QUESTIONS = Path(__file__).parents[1] / "data" / "mt_bench_questions.jsonl"


async def test_warm_conversations_weighted_shares_and_a_flood(tmp_path: Path) -> None:
    questions = [orjson.loads(line)["turns"] for line in QUESTIONS.read_bytes().splitlines()]
    # A question shorter than a block leaves nothing that one worker holds and the other does not.
    long = sorted(questions, key=lambda turns: -len(turns[0]))
    async with two_workers(tmp_path) as (inferd, chats):
        turns = await conversations(chats[HEAVY], long[:6])
        await asyncio.sleep(0.2)
        worker_of = {row.request_id: row.worker for row in inferd.rows()}
        for first, second in turns:
            assert worker_of[second.request_id] == worker_of[first.request_id]
            assert second.cached_tokens >= 0.95 * first.prompt_tokens
        assert len({worker_of[first.request_id] for first, _ in turns}) == 2, "both are used"
        got = await shares(chats, seconds=8, clients=14)
        assert got[HEAVY] / got[LIGHT] == pytest.approx(3, rel=0.1)
        found = await flood(chats[LIGHT], 6, batch=6, batch_tokens=200, settle_s=0.5)
        assert len(found.flooded) == 3
