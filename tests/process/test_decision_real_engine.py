"""The decision over two real engines: conversations stay warm.

`scripts/bench decision` holds the shares of teams and the effect of a flood, which take longer.
"""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.fakes.decision_rig import conversations
from tests.fakes.two_workers import HEAVY, two_workers

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.real_time(timeout_s=240)]

QUESTIONS = Path(__file__).parents[1] / "data" / "mt_bench_questions.jsonl"


async def test_second_turns_find_their_warm_worker(tmp_path: Path) -> None:
    questions = [orjson.loads(line)["turns"] for line in QUESTIONS.read_bytes().splitlines()]
    # A question shorter than a block leaves nothing that one worker holds and the other does not.
    long = sorted(questions, key=lambda turns: -len(turns[0]))
    async with two_workers(tmp_path) as (inferd, chats):
        turns = await conversations(chats[HEAVY], long[:6])
        await inferd.written()
        worker_of = {row.request_id: row.worker for row in inferd.rows()}
        for first, second in turns:
            assert worker_of[second.request_id] == worker_of[first.request_id]
            assert second.cached_tokens >= 0.95 * first.prompt_tokens
        assert len({worker_of[first.request_id] for first, _ in turns}) == 2, "both are used"
