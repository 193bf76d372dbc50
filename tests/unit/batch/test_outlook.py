"""When a batch should be done: by what engines should do, then by what was seen."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from inferd.batch.job import Job
from inferd.batch.jobs import JobState
from inferd.batch.outlook import FORGET_S, SEEN_MIN, SEEN_S_MIN, Outlook, Pace
from inferd.batch.spool import Spool
from inferd.batch.validation import Report
from inferd.routing.batch_speed import BatchSpeed
from inferd.storage.batches import BatchRow

SPEED = BatchSpeed(prompt_ms=0.5, output_ms=2.0, answer_tokens=100)
LINES = 1_000
NOW_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000


def row(name: str = "a", model: str = "chat", hours: int = 24) -> BatchRow:
    """A thousand lines: 100,000 tokens of prompts, 50,000 of answers: 150 s."""
    return BatchRow(
        id=f"batch_{name}",
        team="search",
        key_id="key",
        endpoint="/v1/chat/completions",
        model=model,
        input_file_id="file-1",
        completion_window="24h",
        status=JobState.IN_PROGRESS.value,
        created_us=NOW_US,
        expires_us=NOW_US + hours * HOUR_US,
        total=LINES,
        prompt_tokens_estimated=100_000,
        output_tokens_estimated=50_000,
    )


def job(row: BatchRow) -> Job:
    made = Job(row, Spool(Path("none")))
    entries = [number for line in range(row.total) for number in (line + 1, line, 1)]
    made.load(array("Q", entries), ())
    return made


def seconds_from_now(end_us: int | None) -> float:
    assert end_us is not None
    return (end_us - NOW_US) / 1e6


def test_a_new_batch_takes_what_its_tokens_take() -> None:
    asked = []

    def speed_of(model: str, prompt_tokens: int) -> BatchSpeed:
        asked.append((model, prompt_tokens))
        return SPEED

    outlook = Outlook({}, speed_of)
    assert seconds_from_now(outlook.first(row(), NOW_US)) == pytest.approx(150)
    assert asked == [("chat", 100)]


def test_nobody_can_say_without_a_worker() -> None:
    outlook = Outlook({}, lambda _model, _tokens: None)
    assert outlook.first(row(), NOW_US) is None
    assert outlook.end_us(job(row()), 0.0, NOW_US) is None


def test_what_is_due_before_goes_first() -> None:
    others = [row("b", hours=1), row("c", hours=48), row("d", model="other", hours=1)]
    jobs = {one.id: job(one) for one in others}
    outlook = Outlook(jobs, lambda _model, _tokens: SPEED)
    assert seconds_from_now(outlook.first(row(), NOW_US)) == pytest.approx(300)
    for _ in range(LINES // 2):
        jobs["batch_b"].done(jobs["batch_b"].take())
    assert seconds_from_now(outlook.first(row(), NOW_US)) == pytest.approx(225)


def test_once_lines_were_seen_their_pace_counts() -> None:
    mine = job(row())
    outlook = Outlook({mine.id: mine}, lambda _model, _tokens: SPEED)
    for second in range(20):
        outlook.done("chat", 2, float(second))
    assert seconds_from_now(outlook.end_us(mine, 20.0, NOW_US)) == pytest.approx(500)
    elsewhere = job(row("b", model="other"))
    assert seconds_from_now(outlook.end_us(elsewhere, 20.0, NOW_US)) == pytest.approx(150)


def test_a_pace_needs_enough_and_is_forgotten() -> None:
    pace = Pace()
    pace.done(SEEN_MIN - 1, 0.0)
    assert pace.lines_per_s(100.0) is None
    pace.done(1, 0.0)
    assert pace.lines_per_s(SEEN_S_MIN / 2) is None
    assert pace.lines_per_s(8.0) == SEEN_MIN / 8
    assert pace.lines_per_s(FORGET_S + 1) is None


@pytest.mark.parametrize(
    ("asked", "unlimited", "expected"),
    [(300, 0, 300), (5_000, 0, 1_000), (300, 4, 700), (0, 10, 1_000)],
)
def test_answers_are_as_long_as_answers_are(asked: int, unlimited: int, expected: int) -> None:
    outlook = Outlook({}, lambda _model, _tokens: SPEED)
    report = Report(10, "chat", 1_000, asked, unlimited, [], 0)
    assert outlook.output_tokens(report) == expected
