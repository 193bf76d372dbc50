"""One request from reservation to settlement, over scripted workers: every way it can end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from inferd.config.schema import Team
from inferd.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    InferdError,
    NoWorker,
    RateLimited,
    ShuttingDown,
    UpstreamError,
    WorkerFailedMidStream,
    WorkerFull,
    WorkerUnreachable,
)
from inferd.inference import Outcome
from tests.fakes.scripted_worker import PROMPT_TOKENS
from tests.paths.data_path import CollectedStream, DataPath


async def error_of(work: Awaitable[None]) -> InferdError:
    with pytest.raises(InferdError) as caught:
        await work
    return caught.value


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_is_billed_as_the_engine_counted_it(stream: bool) -> None:
    path = DataPath("w1")
    sink = CollectedStream()
    async with path.serving():
        await path.dispatch.run(path.request(stream=stream), sink)
    (row,) = path.rows
    assert (row.prompt_tokens, row.completion_tokens) == (PROMPT_TOKENS, 10)
    assert (row.outcome, row.estimated, row.attempts) == (Outcome.COMPLETED, False, 1)
    assert sink.received.endswith(b"data: [DONE]\n\n") is stream
    assert row.response_id is not None
    assert row.response_id.encode() in sink.received
    path.assert_at_rest()


async def test_the_engine_gets_our_fields_and_a_token_limit() -> None:
    path = DataPath("w1")
    async with path.serving():
        await path.dispatch.run(path.request(), CollectedStream())
    (sent,) = path.workers["w1"].requests
    assert sent["max_tokens"] == 10
    assert sent["stream_options"] == {"include_usage": True}
    assert sent["extra_key"] == "search"
    assert sent["priority"] == 0
    assert len(sent["rid"]) == len("chatcmpl-") + 32


async def test_ttft_and_time_per_token_are_of_the_stream() -> None:
    path = DataPath("w1")
    async with path.serving():
        await path.dispatch.run(path.request(), CollectedStream())
    (row,) = path.rows
    assert row.ttft_s == pytest.approx(0.1)
    assert row.tpot_s == pytest.approx(0.04)
    assert row.queue_wait_s == 0


@pytest.mark.parametrize("left_after_s", [0.0, 0.05, 0.1, 0.2, 0.3])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_worker_at_once_and_pays_what_was_made(
    left_after_s: float, stream: bool
) -> None:
    path = DataPath("w1", slots=1)
    async with path.serving() as requests:
        task = requests.create_task(
            path.dispatch.run(path.request(stream=stream), CollectedStream())
        )
        await asyncio.sleep(left_after_s)
        task.cancel()
        await asyncio.sleep(1.0)
        assert path.scheduler.leases_open == 0
        assert not path.workers["w1"].open
    (row,) = path.rows
    assert row.outcome is Outcome.CLIENT_LEFT
    if path.workers["w1"].requests:
        assert path.workers["w1"].aborts == [row.response_id]
        assert row.prompt_tokens + row.completion_tokens == path.workers["w1"].billed
        assert not row.estimated
    path.assert_at_rest()


async def test_a_bill_that_does_not_come_is_what_was_relayed_and_says_so() -> None:
    path = DataPath("w1")
    path.workers["w1"].ignores_aborts = True
    path.workers["w1"].token_s = 2.0
    async with path.serving() as requests:
        task = requests.create_task(path.dispatch.run(path.request(), CollectedStream()))
        await asyncio.sleep(4.5)  # the first token and two more
        task.cancel()
    (row,) = path.rows
    assert (row.estimated, row.completion_tokens, row.prompt_tokens) == (True, 3, 20)
    path.assert_at_rest()


async def test_a_worker_lost_before_the_first_event_is_replaced_unseen() -> None:
    path = DataPath("w1", "w2")
    for worker in path.workers.values():
        worker.refuses_connections = True
    broken, sound = path.workers.values()
    sound.refuses_connections = False
    async with path.serving():
        for _ in range(4):
            sink = CollectedStream()
            await path.dispatch.run(path.request(), sink)
            assert sink.received.endswith(b"[DONE]\n\n")
    assert {row.worker for row in path.rows} == {"w2"}
    assert all(row.outcome is Outcome.COMPLETED for row in path.rows)
    assert any(row.attempts == 2 for row in path.rows)
    assert not broken.requests
    path.assert_at_rest()


@pytest.mark.parametrize("stream", [True, False])
async def test_nothing_is_sent_twice_a_stream_lost_half_way_is_told_not_retried(
    stream: bool,
) -> None:
    path = DataPath("w1", "w2")
    for worker in path.workers.values():
        worker.cut_after = 5
    sink = CollectedStream()
    async with path.serving():
        error = await error_of(path.dispatch.run(path.request(stream=stream), sink))
    asked = [len(worker.requests) for worker in path.workers.values()]
    (row,) = path.rows
    if stream:
        assert isinstance(error, WorkerFailedMidStream)
        assert sorted(asked) == [0, 1]
        assert (row.completion_tokens, row.estimated) == (5, True)
    else:
        assert isinstance(error, WorkerUnreachable)
        assert asked == [1, 1]
        assert row.completion_tokens == 0
    assert b"[DONE]" not in sink.received
    path.assert_at_rest()


async def test_the_only_worker_lost_is_told_as_such_and_costs_nothing() -> None:
    path = DataPath("w1", team=Team(name="search", tokens_per_s=1, burst_tokens=100))
    path.workers["w1"].refuses_connections = True
    async with path.serving():
        error = await error_of(path.dispatch.run(path.request(), CollectedStream()))
    assert isinstance(error, WorkerUnreachable)
    (row,) = path.rows
    assert (row.outcome, row.prompt_tokens, row.attempts) == (Outcome.FAILED, 0, 1)
    (state, _) = path.buckets.snapshot(0)
    assert state.tokens is not None
    assert state.tokens.balance == 100
    path.assert_at_rest()


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (503, "The request queue is full.", WorkerFull),
        (
            400,
            "The input (9 tokens) is longer than the model's context length (8 tokens).",
            ContextLengthExceeded,
        ),
        (500, "/usr/lib/engine.py exploded", UpstreamError),
    ],
)
async def test_an_engines_refusal_becomes_ours_and_shows_no_internals(
    status: int, message: str, kind: type[InferdError]
) -> None:
    path = DataPath("w1")
    path.workers["w1"].status = status
    path.workers["w1"].body = b'{"object":"error","message":"%b","code":0}' % message.encode()
    async with path.serving():
        error = await error_of(path.dispatch.run(path.request(), CollectedStream()))
    assert isinstance(error, kind)
    assert "/usr" not in error.message
    assert path.rows[0].prompt_tokens == 0
    path.assert_at_rest()


async def test_a_full_engine_is_no_reason_to_refuse_while_another_has_room() -> None:
    path = DataPath("w1", "w2")
    full = path.workers["w1"]
    full.status, full.body = 503, b'{"message":"The request queue is full.","code":503}'
    async with path.serving():
        for _ in range(6):
            await path.dispatch.run(path.request(), CollectedStream())
    assert {row.worker for row in path.rows} == {"w2"}
    path.assert_at_rest()


async def test_no_worker_is_503_and_a_spent_bucket_429_and_neither_costs() -> None:
    path = DataPath("w1", team=Team(name="search", tokens_per_s=1, burst_tokens=40))
    async with path.serving():
        await path.dispatch.run(path.request(), CollectedStream())
        limited = await error_of(path.dispatch.run(path.request(), CollectedStream()))
        assert isinstance(limited, RateLimited)
        assert limited.retry_after_s is not None
        await asyncio.sleep(limited.retry_after_s)
        path.scheduler.target_down("w1")
        missing = await error_of(path.dispatch.run(path.request(), CollectedStream()))
        assert isinstance(missing, NoWorker)
        path.scheduler.target_up("w1", 4)
        await path.dispatch.run(path.request(), CollectedStream())
    assert [row.outcome for row in path.rows] == ["completed", "refused", "refused", "completed"]
    path.assert_at_rest()


async def test_a_deadline_ends_a_request_wherever_it_is_and_frees_its_worker() -> None:
    path = DataPath("w1")
    path.workers["w1"].token_s = 100
    async with path.serving():
        request = path.request()
        error = await error_of(path.dispatch.run(request, CollectedStream()))
    assert isinstance(error, DeadlineExceeded)
    (row,) = path.rows
    assert row.duration_s == pytest.approx(600)
    assert (row.outcome, row.error_code) == (Outcome.FAILED, "deadline_exceeded")
    assert path.workers["w1"].aborts
    path.assert_at_rest()


async def test_closing_ends_running_and_waiting_requests_with_a_reason() -> None:
    path = DataPath("w1", slots=1)
    path.workers["w1"].token_s = 50
    async with path.serving() as requests:
        running = requests.create_task(
            error_of(path.dispatch.run(path.request(), CollectedStream()))
        )
        waiting = requests.create_task(
            error_of(path.dispatch.run(path.request(), CollectedStream()))
        )
        await asyncio.sleep(1)
        path.dispatch.close(ShuttingDown("bye"))
        await asyncio.wait([running, waiting])
        late = await error_of(path.dispatch.run(path.request(), CollectedStream()))
    assert isinstance(running.result(), ShuttingDown)
    assert isinstance(waiting.result(), ShuttingDown)
    assert isinstance(late, ShuttingDown)
    path.assert_at_rest()


async def test_a_slow_reader_slows_its_own_stream_only() -> None:
    path = DataPath("w1")
    slow, quick = CollectedStream(reads_s=3.0), CollectedStream()
    async with path.serving() as requests:
        requests.create_task(path.dispatch.run(path.request(), slow))
        requests.create_task(path.dispatch.run(path.request(), quick))
        await asyncio.sleep(1.0)
        assert quick.received.endswith(b"[DONE]\n\n")
        assert not slow.received.endswith(b"[DONE]\n\n")
    assert len(slow.received) == len(quick.received)
    path.assert_at_rest()


async def test_a_long_prompt_without_a_limit_gets_what_the_context_has_left() -> None:
    path = DataPath("w1")
    worker = path.workers["w1"]
    worker.refuse_above_tokens = 7
    async with path.serving():
        await path.dispatch.run(path.request(output_tokens_given=False), CollectedStream())
        refused = await error_of(path.dispatch.run(path.request(), CollectedStream()))
    assert [sent["max_tokens"] for sent in worker.requests] == [10, 7, 10]
    assert isinstance(refused, ContextLengthExceeded)
    assert [row.outcome for row in path.rows] == ["completed", "failed"]
    path.assert_at_rest()


QUEUE_FULL = b'data: {"error": {"message": "The request queue is full.", "code": 503}}\n\n'
"""How the engine refuses a stream after its head, with status 200."""


async def test_the_second_worker_is_billed_when_the_first_refused_in_its_stream() -> None:
    path = DataPath("w1", "w2")
    for worker in path.workers.values():
        worker.error_ends_s = 30
    path.workers["w1"].error_event = QUEUE_FULL
    async with path.serving():
        for _ in range(8):  # whichever of the two comes first
            await path.dispatch.run(path.request(), CollectedStream())
    assert {row.attempts for row in path.rows} == {1, 2}
    assert {(row.worker, row.outcome) for row in path.rows} == {("w2", Outcome.COMPLETED)}
    assert {(row.prompt_tokens, row.completion_tokens) for row in path.rows} == {
        (PROMPT_TOKENS, 10)
    }
    assert not any(row.estimated for row in path.rows)
    path.assert_at_rest()


async def test_a_request_that_every_worker_refuses_in_its_stream_is_settled_once() -> None:
    path = DataPath("w1", "w2")
    for worker in path.workers.values():
        worker.error_event, worker.error_ends_s = QUEUE_FULL, 30
    async with path.serving():
        error = await error_of(path.dispatch.run(path.request(), CollectedStream()))
    assert isinstance(error, WorkerFull)
    (row,) = path.rows
    assert (row.attempts, row.outcome, row.error_code) == (2, Outcome.FAILED, "overloaded")
    path.assert_at_rest()


async def test_what_the_engine_refused_costs_its_team_no_turn() -> None:
    path = DataPath("w1", slots=1)
    worker = path.workers["w1"]
    worker.refuse_above_tokens = 7
    order: list[str] = []

    async def ask(team: str) -> None:
        tokens = 5_000 if team == "search" else 7
        request = path.request(team=team, output_tokens_max=tokens, output_tokens_given=False)
        await path.dispatch.run(request, CollectedStream())
        order.append(team)

    async with path.serving() as requests:
        await ask("search")
        for team in (*["other"] * 8, "search"):
            requests.create_task(ask(team))
    assert order[1:].index("search") <= 4
    path.assert_at_rest()


async def test_a_worker_that_is_lost_after_a_refusal_is_replaced_all_the_same() -> None:
    path = DataPath("w1", "w2")
    for worker in path.workers.values():
        worker.refuse_above_tokens = 7
    sink = CollectedStream()
    async with path.serving() as requests:
        request = path.request(output_tokens_given=False)
        asking = requests.create_task(path.dispatch.run(request, sink))
        while sum(len(worker.requests) for worker in path.workers.values()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        for worker in path.workers.values():
            worker.client.fail_all(WorkerUnreachable("The worker was lost."))
        await asking
    (row,) = path.rows
    assert (row.outcome, row.attempts, row.completion_tokens) == (Outcome.COMPLETED, 3, 7)
    path.assert_at_rest()
