"""Batches from their creation to their end: states, results, bills, and what goes wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from inferd.clock import utc_now_us
from inferd.config.batches import Batches
from inferd.errors import (
    Conflict,
    InferdError,
    InvalidField,
    NoWorker,
    QueueFull,
    StorageError,
    WorkerUnreachable,
)
from inferd.inference import Priority
from inferd.routing.batch_speed import BatchSpeed
from inferd.storage import batches
from inferd.storage.batches import BatchRow
from inferd.storage.database import Database
from inferd.storage.idempotency import Claim
from tests.paths.data_path import CollectedStream
from tests.process.batch.rig import TEAM, encoded, line, lines, rig

pytestmark = pytest.mark.real_time


async def test_a_batch_is_served_and_billed(tmp_path: Path) -> None:
    async with rig(tmp_path) as one:
        row = await one.ended((await one.create(lines(20))).id)
        output, errors = await one.results(row)
    assert row.status == "completed"
    assert (row.total, row.completed, row.failed, errors) == (20, 20, 0, [])
    assert row.error_file_id is None
    assert row.model == "chat"
    assert row.created_us <= (row.in_progress_us or 0) <= (row.finalizing_us or 0)
    assert (row.finalizing_us or 0) <= (row.completed_us or 0)
    assert all(one["response"]["status_code"] == 200 and one["error"] is None for one in output)
    assert not list((tmp_path / "batches").iterdir()), "nothing is left in the spool"


async def test_a_wrong_file_fails_the_whole_batch(tmp_path: Path) -> None:
    async with rig(tmp_path) as one:
        row = await one.ended((await one.create(encoded(line(1), line(1)))).id)
        assert row.status == "failed"
        assert row.failed_us is not None
        assert [(error["code"], error["line"]) for error in row.errors or ()] == [
            ("duplicate_custom_id", 2)
        ]
        assert not one.calls
        missing = await one.ended((await one.create(b"", input_file_id="file-none")).id)
        other = one.files.put(lines(1), "user_data")
        wrong = await one.ended((await one.create(b"", input_file_id=other)).id)
        for failed in (missing, wrong):
            assert failed.errors is not None
            (error,) = failed.errors
            assert (error["code"], error["param"]) == ("invalid_request", "file_id")
    assert not list((tmp_path / "batches").iterdir())


async def test_lines_that_fail_go_to_the_error_file(tmp_path: Path) -> None:
    def refuses(text: str, tried: int) -> InferdError | None:
        if text == "number 3":
            return InvalidField("Invalid 'top_p'.", param="top_p")
        if text == "number 5" and tried < 3:
            return NoWorker("None is ready.", retry_after_s=0.01)
        return None

    async with rig(tmp_path, refuses=refuses) as one:
        row = await one.ended((await one.create(lines(8))).id)
        output, (error,) = await one.results(row)
        assert row.status == "completed"
        assert len(output) == 7
        assert error["custom_id"] == "id-3"
        assert error["error"] is None
        assert error["response"]["status_code"] == 400
        assert error["response"]["body"]["error"]["param"] == "top_p"
        assert one.calls["number 5"] == 3, "waiting is no attempt"
        refused = [bill for bill in await one.ledger() if bill.request_id == error["id"]]
        assert [(bill.outcome, bill.prompt_tokens) for bill in refused] == [("refused", 0)]


async def test_all_lines_may_fail_and_the_batch_completes(tmp_path: Path) -> None:
    wrong = InvalidField("Invalid 'n'.", param="n")
    async with rig(tmp_path, refuses=lambda _text, _try: wrong) as one:
        row = await one.ended((await one.create(lines(3))).id)
        await one.results(row)
    assert (row.status, row.completed, row.failed) == ("completed", 0, 3)
    assert row.output_file_id is None
    assert row.error_file_id is not None


async def test_a_poison_line_ends_in_the_error_file(tmp_path: Path) -> None:
    def refuses(text: str, _tried: int) -> InferdError | None:
        return WorkerUnreachable("It crashed.") if text == "number 1" else None

    limits = Batches(attempts_max=2)
    async with rig(tmp_path, refuses=refuses, limits=limits) as one:
        row = await one.ended((await one.create(lines(3))).id)
        _, (error,) = await one.results(row)
        assert one.calls["number 1"] == 2
    assert error["response"]["status_code"] == 502
    assert error["response"]["body"]["error"]["code"] == "worker_unavailable"


async def test_a_line_that_nobody_answers_times_out(tmp_path: Path) -> None:
    limits = Batches(attempts_max=1)
    async with rig(tmp_path, token_s=0.5, try_s=0.3, limits=limits) as one:
        row = await one.ended((await one.create(lines(1))).id)
        _, (error,) = await one.results(row)
    assert error["response"] is None
    assert error["error"]["code"] == "request_timeout"


async def test_cancel_keeps_what_is_done(tmp_path: Path) -> None:
    async with rig(tmp_path, token_s=0.01, slots=2) as one:
        created = await one.create(lines(40))
        await one.until(created.id, lambda row: row.completed >= 10)
        cancelling = await one.runner.cancel(await one.row(created.id))
        assert cancelling.status == "cancelling"
        assert (await one.runner.cancel(cancelling)).status == "cancelling"
        row = await one.ended(created.id)
        output, errors = await one.results(row)
        assert row.status == "cancelled"
        assert len(output) >= 10
        assert {error["error"]["code"] for error in errors} == {"batch_cancelled"}
        assert all(error["response"] is None for error in errors)
        assert (await one.runner.cancel(row)).status == "cancelled"
        assert len(await one.ledger()) == len(output)


async def test_cancel_while_validating(tmp_path: Path) -> None:
    async with rig(tmp_path) as one:
        created = await one.create(lines(2_000))
        await one.runner.cancel(created)
        row = await one.ended(created.id)
    assert (row.status, row.total) == ("cancelled", 0)
    assert (row.output_file_id, row.error_file_id) == (None, None)


async def test_what_has_ended_cannot_be_cancelled(tmp_path: Path) -> None:
    async with rig(tmp_path) as one:
        row = await one.ended((await one.create(lines(1))).id)
        with pytest.raises(Conflict, match="'completed'") as caught:
            await one.runner.cancel(row)
        assert caught.value.client_retry is False


async def test_a_window_that_ends_keeps_what_is_done(tmp_path: Path) -> None:
    async with rig(tmp_path, token_s=0.01, slots=1) as one:
        created = await one.create(lines(200), window_s=2.0)
        row = await one.ended(created.id)
        output, errors = await one.results(row)
    assert row.status == "expired"
    assert row.expired_us is not None
    assert row.expired_us >= row.expires_us
    assert output
    assert {error["error"]["code"] for error in errors} == {"batch_expired"}


async def test_a_store_that_fails_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferd.batch.runner.AGAIN_S", 0.05)
    async with rig(tmp_path) as one:
        one.files.broken = StorageError("The store does not answer.")
        created = await one.create(lines(3))
        await asyncio.sleep(0.2)
        assert (await one.row(created.id)).status == "validating"
        one.files.broken = None
        row = await one.ended(created.id)
        await one.results(row)
    assert row.status == "completed"


async def test_an_idempotency_key_makes_one_batch(tmp_path: Path) -> None:
    limits = Batches(unfinished_per_team_max=1)
    async with rig(tmp_path, token_s=0.05, limits=limits) as one:
        claim = Claim(TEAM, "/v1/batches", "k", "asked")
        first = await one.create(lines(20), claim=claim)
        again = await one.create(b"", claim=claim, input_file_id=first.input_file_id)
        assert again.id == first.id, "although no other one has room"
        with pytest.raises(Conflict, match="Idempotency-Key"):
            await one.create(lines(1), claim=replace(claim, digest="other"))


async def test_many_at_once_are_not_more_than_a_team_may_have(tmp_path: Path) -> None:
    async with rig(tmp_path, limits=Batches(unfinished_per_team_max=3)) as one:
        made = await asyncio.gather(
            *(one.create(lines(1)) for _ in range(9)), return_exceptions=True
        )
    assert sum(isinstance(each, QueueFull) for each in made) == 6


async def test_a_team_has_only_so_many(tmp_path: Path) -> None:
    limits = Batches(unfinished_per_team_max=1)
    async with rig(tmp_path, token_s=0.05, limits=limits) as one:
        created = await one.create(lines(20))
        with pytest.raises(QueueFull, match="1 batches that are not finished"):
            await one.create(lines(1))
        await one.ended(created.id)
        await one.ended((await one.create(lines(1))).id)


async def test_the_token_cap_counts_what_is_queued(tmp_path: Path) -> None:
    limits = Batches(queued_tokens_per_team_max=10_000)
    async with rig(tmp_path, token_s=0.05, limits=limits) as one:
        first = await one.create(lines(20))
        await one.until(first.id, lambda row: row.status == "in_progress")
        second = await one.ended((await one.create(lines(200))).id)
        assert second.status == "failed"
        assert second.errors is not None
        (error,) = second.errors
        assert error["code"] == "token_limit_exceeded"
        assert (await one.ended(first.id)).status == "completed"


async def test_what_is_due_first_is_served_first(tmp_path: Path) -> None:
    async with rig(tmp_path, token_s=0.005, slots=1) as one:
        later = await one.create(lines(600), window_s=90_000)
        await one.until(later.id, lambda row: row.completed >= 3)
        sooner = await one.create(lines(10), window_s=3_600)
        ended = await one.ended(sooner.id)
        other = await one.row(later.id)
        assert ended.status == "completed"
        assert other.status == "in_progress"
        assert other.estimated_end_us is not None


async def test_interactive_requests_go_first(tmp_path: Path) -> None:
    """They displace lines, which are served again from their start, and no attempt is counted."""
    limits = Batches(attempts_max=1)
    async with rig(tmp_path, token_s=0.02, slots=2, limits=limits) as one:
        created = await one.create(lines(12))
        await one.until(created.id, lambda row: row.completed >= 1)
        for _ in range(3):
            await one.path.dispatch.run(
                one.path.request(priority=Priority.INTERACTIVE), CollectedStream()
            )
        row = await one.ended(created.id)
        await one.results(row)
    assert (row.status, row.failed) == ("completed", 0)


async def test_what_is_not_billed_is_not_spent(tmp_path: Path) -> None:
    """Lines are cut by a cancellation: neither the ledger nor the budget has their tokens."""
    async with rig(tmp_path, token_s=0.05, limits=Batches(cancel_grace_s=0.01)) as one:
        created = await one.create(lines(40))
        await one.until(created.id, lambda row: row.completed >= 4)
        await one.until_answering()
        await one.runner.cancel(await one.row(created.id))
        row = await one.ended(created.id)
        assert row.failed
        async with asyncio.timeout(5):
            while one.path.ledger.open_count:  # noqa: ASYNC110 - bills come a little later
                await asyncio.sleep(0.01)
        (spent,) = one.path.budgets.snapshot(utc_now_us())
        billed = await one.ledger()
    assert spent.tokens == row.prompt_tokens + row.completion_tokens
    assert spent.tokens == sum(bill.prompt_tokens + bill.completion_tokens for bill in billed)
    assert {attempt.reason for attempt in one.path.unbilled} == {"cut"}
    assert all(attempt.prompt_tokens for attempt in one.path.unbilled)


async def test_an_end_that_cannot_be_written_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferd.batch.runner.AGAIN_S", 0.01)
    finish, refusals = batches.finish, [StorageError("The disk is full.")]

    async def full_once(db: Database, row: BatchRow) -> BatchRow:
        if refusals:
            raise refusals.pop()
        return await finish(db, row)

    monkeypatch.setattr(batches, "finish", full_once)
    async with rig(tmp_path) as one:
        row = await one.ended((await one.create(lines(5))).id)
        output, _ = await one.results(row)
    assert (row.status, len(output), refusals) == ("completed", 5, [])
    assert not list((tmp_path / "batches").iterdir())


async def test_a_batch_that_slips_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("inferd.batch.runner.LOOK_S", 0.05)
    monkeypatch.setattr("inferd.batch.outlook.SEEN_S_MIN", 0.1)
    hoped = BatchSpeed(prompt_ms=0.0, output_ms=0.0, answer_tokens=1)
    async with rig(tmp_path, token_s=0.01, slots=1, speed=hoped) as one:
        created = await one.create(lines(500), window_s=4.0)
        running = await one.until(created.id, lambda row: row.status == "in_progress")
        assert running.estimated_end_us is not None
        assert running.estimated_end_us <= running.expires_us, "by what engines should do"
        late = await one.until(created.id, lambda row: (row.estimated_end_us or 0) > row.expires_us)
        assert late.status == "in_progress"
        row = await one.ended(created.id)
    assert row.status == "expired"
    assert one.registry.get_sample_value("inferd_batches_slipped_total") == 1
    (told,) = [record for record in caplog.messages if "after its window ends" in record]
    assert created.id in told
