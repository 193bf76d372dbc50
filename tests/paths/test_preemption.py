"""Batch work makes room for interactive requests, and is served again from its start."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from inferd.inference import Outcome, Priority
from tests.paths.data_path import CollectedStream, DataPath


async def test_a_batch_request_makes_room_and_is_billed_once() -> None:
    path = DataPath("w1", slots=1)
    batch, interactive = CollectedStream(), CollectedStream()
    async with path.serving() as requests:
        asked = path.request(priority=Priority.BATCH, stream=False)
        requests.create_task(path.dispatch.run(asked, batch))
        await asyncio.sleep(0.05)
        started = asyncio.get_running_loop().time()
        await path.dispatch.run(path.request(), interactive)
        assert asyncio.get_running_loop().time() - started < 0.6, "it did not wait for the batch"
    first, second = path.rows
    assert (first.priority, second.priority) == ("interactive", "batch")
    assert (second.outcome, second.attempts) == (Outcome.COMPLETED, 1)
    assert second.completion_tokens == 10
    assert len(path.workers["w1"].requests) == 3
    assert len(path.workers["w1"].aborts) == 1
    assert batch.received
    path.assert_at_rest()


async def test_a_pair_that_makes_room_is_billed_for_what_it_is_served_in_the_end() -> None:
    path = DataPath("p", decoders=("d",), slots=1)
    path.workers["p"].first_token_s = 1.0
    path.workers["d"].first_token_s = 2.0
    async with path.serving() as requests:
        asked = path.request(priority=Priority.BATCH, stream=False)
        requests.create_task(path.dispatch.run(asked, CollectedStream()))
        await asyncio.sleep(0.05)
        await path.dispatch.run(path.request(), CollectedStream())
    first, second = path.rows
    assert (first.priority, second.priority) == ("interactive", "batch")
    assert (second.outcome, second.attempts, second.worker) == (Outcome.COMPLETED, 1, "d")
    assert second.completion_tokens == 10
    assert [(row.reason, row.worker) for row in path.unbilled] == [("preempted", "d")]
    path.assert_at_rest()


async def test_a_batch_stream_that_has_begun_is_left_alone() -> None:
    path = DataPath("w1", slots=1)
    async with path.serving() as requests:
        asked = path.request(priority=Priority.BATCH)
        requests.create_task(path.dispatch.run(asked, CollectedStream()))
        await asyncio.sleep(0.2)
        await path.dispatch.run(path.request(), CollectedStream())
    assert len(path.workers["w1"].requests) == 2
    assert [row.priority for row in path.rows] == ["batch", "interactive"]
    path.assert_at_rest()


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engines_own_eviction_costs_no_attempt_and_no_worker(stream: bool) -> None:
    path = DataPath("w1")
    worker = path.workers["w1"]
    worker.status = 503
    message = "The request is aborted by a higher priority request."
    worker.body = orjson.dumps({"message": message, "code": 503})
    async with path.serving() as requests:
        asked = path.request(priority=Priority.BATCH, stream=stream)
        requests.create_task(path.dispatch.run(asked, CollectedStream()))
        await asyncio.sleep(1.0)
        worker.status = 200
    (row,) = path.rows
    assert (row.outcome, row.attempts) == (Outcome.COMPLETED, 1)
    assert 2 <= len(worker.requests) <= 6
    path.assert_at_rest()


async def test_a_client_that_asks_is_told_why() -> None:
    path = DataPath("w1", "w2")
    why: dict[str, str] = {}
    async with path.serving():
        await path.dispatch.run(path.request(why=why), CollectedStream())
    (row,) = path.rows
    assert f"worker={row.worker}; reason=tie; candidates=2; hit_tokens=0" in why["x-inferd-why"]
    assert (row.candidates, row.hit_tokens) == (2, 0)
