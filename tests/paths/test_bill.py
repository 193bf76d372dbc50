"""What a request costs, and what nobody pays for, over scripted workers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
import pytest

from inferd.clock import utc_now_us
from inferd.config.money import Budget
from inferd.config.schema import Team
from inferd.errors import BudgetSpent, InferdError
from inferd.inference import Outcome, Priority
from tests.fakes.scripted_worker import PROMPT_TOKENS
from tests.paths.data_path import CollectedStream, DataPath


@pytest.mark.parametrize(
    ("priority", "output_price"), [(Priority.INTERACTIVE, 600_000), (Priority.BATCH, 300_000)]
)
async def test_a_row_has_its_cost(priority: Priority, output_price: int) -> None:
    path = DataPath("w1")
    async with path.serving():
        await path.dispatch.run(path.request(priority=priority), CollectedStream())
    (row,) = path.rows
    assert row.cost_pico == PROMPT_TOKENS * 150_000 + 10 * output_price


async def test_a_spent_budget_refuses_before_anything_is_claimed() -> None:
    team = Team(name="search", budget=Budget(tokens_per_month=PROMPT_TOKENS + 10))
    path = DataPath("w1", team=team)
    async with path.serving():
        await path.dispatch.run(path.request(), CollectedStream())
        with pytest.raises(BudgetSpent):
            await path.dispatch.run(path.request(), CollectedStream())
        await path.dispatch.run(path.request(team="other"), CollectedStream())
    _, refused, _ = path.rows
    assert (refused.outcome, refused.error_code) == (Outcome.REFUSED, "insufficient_quota")
    assert (refused.cost_pico, refused.attempts) == (0, 0)
    (state,) = [one for one in path.budgets.snapshot(utc_now_us()) if one.team == "search"]
    assert state.cost_pico == sum(row.cost_pico for row in path.rows if row.team == "search")
    path.assert_at_rest()


async def test_an_answer_that_nobody_saw_is_told_beside_the_ledger() -> None:
    path = DataPath("w1")
    body = {"choices": "none", "usage": {"prompt_tokens": 20, "completion_tokens": 3}}
    event = b'data: {"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":3}}\n\n'
    path.workers["w1"].error_event = event + b"data: " + orjson.dumps(body) + b"\n\n"
    async with path.serving():
        with pytest.raises(InferdError):
            await path.dispatch.run(path.request(), CollectedStream())
    (row,) = path.rows
    assert (row.prompt_tokens, row.completion_tokens, row.cost_pico) == (0, 0, 0)
    (unbilled,) = path.unbilled
    assert (unbilled.request_id, unbilled.worker) == (row.request_id, "w1")
    assert (unbilled.prompt_tokens, unbilled.completion_tokens) == (20, 3)
    assert unbilled.reason == "failed"


async def test_a_preempted_attempt_is_told_beside_the_ledger() -> None:
    path = DataPath("w1", slots=1)
    async with path.serving() as requests:
        batch = path.request(priority=Priority.BATCH, stream=False)
        requests.create_task(path.dispatch.run(batch, CollectedStream()))
        await asyncio.sleep(0.3)
        await path.dispatch.run(path.request(), CollectedStream())
    (unbilled,) = path.unbilled
    assert (unbilled.request_id, unbilled.reason) == (batch.request_id, "preempted")
    billed = sum(row.prompt_tokens + row.completion_tokens for row in path.rows)
    computed = unbilled.prompt_tokens + unbilled.completion_tokens
    assert billed + computed == path.workers["w1"].billed
    path.assert_at_rest()


async def test_prices_of_a_reload_hold_for_what_is_settled_after_it() -> None:
    path = DataPath("w1")
    async with path.serving():
        path.prices.update([])
        await path.dispatch.run(path.request(), CollectedStream())
    (row,) = path.rows
    assert replace(row, cost_pico=0) == row


async def test_an_estimate_reckons_with_several_tokens_in_an_event() -> None:
    path = DataPath("w1")
    worker = path.workers["w1"]
    worker.ignores_aborts, worker.token_s = True, 2.0
    worker.client.tokens_per_event = 4
    async with path.serving() as requests:
        for limit in (100, 10):
            request = path.request(output_tokens_max=limit)
            task = requests.create_task(path.dispatch.run(request, CollectedStream()))
            await asyncio.sleep(4.5)  # the first event and two more
            task.cancel()
    assert [(row.estimated, row.completion_tokens) for row in path.rows] == [(True, 12), (True, 10)]
