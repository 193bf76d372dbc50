"""When batches will be done: by the pace of their model, or else by what its engines should do.

Synchronous; times are given by its callers. An estimate, and said so wherever it is shown.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Final

from inferd.batch.job import Job
from inferd.batch.jobs import JobState
from inferd.batch.validation import Report
from inferd.routing.batch_speed import BatchSpeed
from inferd.storage.batches import BatchRow

SEEN_MIN: Final = 16
"""Lines that must be done before they count for more than what engines should do."""
SEEN_S_MIN: Final = 5.0
SEEN_MAX: Final = 512
FORGET_S: Final = 900.0
"""What was longer ago says nothing of now."""


class Pace:
    """Lines of one model as they were done, the newest ones."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=SEEN_MAX)

    def done(self, lines: int, now: float) -> None:
        self._at.extend([now] * min(lines, SEEN_MAX))

    def lines_per_s(self, now: float) -> float | None:
        """None: too little was seen of late."""
        while self._at and now - self._at[0] > FORGET_S:
            self._at.popleft()
        if len(self._at) < SEEN_MIN or now - self._at[0] < SEEN_S_MIN:
            return None
        return len(self._at) / (now - self._at[0])


class Outlook:
    """Owns the paces. `speed_of` is asked of a model and the mean length of its prompts."""

    def __init__(
        self, jobs: Mapping[str, Job], speed_of: Callable[[str, int], BatchSpeed | None]
    ) -> None:
        self._jobs = jobs
        self._speed_of = speed_of
        self._paces: defaultdict[str, Pace] = defaultdict(Pace)

    def done(self, model: str, lines: int, now: float) -> None:
        self._paces[model].done(lines, now)

    def output_tokens(self, report: Report) -> int:
        """Of all answers: as long as answers are, but no longer than was asked for."""
        speed = self._speed_of(report.model or "", 1)
        if speed is None:
            return report.output_tokens
        mean = speed.answer_tokens
        return min(report.output_tokens + report.unlimited * mean, report.total * mean)

    def first(self, row: BatchRow, now_us: int) -> int | None:
        """When a new batch should be done. None: no worker is there to say."""
        speed = self._speed_of(row.model or "", row.prompt_tokens_estimated // max(1, row.total))
        if speed is None:
            return None
        seconds = _seconds(row, row.total - row.completed - row.failed, speed)
        seconds += sum(_seconds(job.row, job.left, speed) for job in self._ahead(row))
        return now_us + round(seconds * 1e6)

    def end_us(self, job: Job, now: float, now_us: int) -> int | None:
        """When a running batch should be done. None: nobody can say."""
        rate = self._paces[job.row.model or ""].lines_per_s(now)
        if rate is None:
            return self.first(job.row, now_us)
        lines = job.left + sum(one.left for one in self._ahead(job.row))
        return now_us + round(lines / rate * 1e6)

    def _ahead(self, row: BatchRow) -> list[Job]:
        """Running batches of the same model that are due before it."""
        return [
            job
            for job in self._jobs.values()
            if job.id != row.id
            and job.row.model == row.model
            and job.row.status == JobState.IN_PROGRESS
            and job.row.expires_us <= row.expires_us
        ]


def _seconds(row: BatchRow, lines: int, speed: BatchSpeed) -> float:
    share = lines / max(1, row.total)
    return share * speed.seconds(row.prompt_tokens_estimated, row.output_tokens_estimated)
