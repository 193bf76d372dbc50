"""The states of a batch and what may follow what; windows as people write them. Pure.

validating → in_progress → finalizing → completed | expired; validating → failed, as does any that
has lost its input; all but the ends → cancelling → cancelled. How a batch will end is decided when
it begins to finalize.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import replace
from enum import StrEnum
from typing import Final

from inferd.errors import InvalidField
from inferd.storage.batches import BatchRow

WINDOW_S_MIN: Final = 3_600
WINDOW_S_MAX: Final = 604_800
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_WINDOW: Final = re.compile(r"([0-9]{1,6})([smhdw])")


class JobState(StrEnum):
    """As the API says it."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


_NEXT: Final = {
    JobState.VALIDATING: {JobState.IN_PROGRESS, JobState.FAILED, JobState.CANCELLING},
    JobState.IN_PROGRESS: {JobState.FINALIZING, JobState.CANCELLING, JobState.FAILED},
    JobState.FINALIZING: {
        JobState.COMPLETED,
        JobState.EXPIRED,
        JobState.CANCELLING,
        JobState.FAILED,
    },
    JobState.CANCELLING: {JobState.CANCELLED, JobState.FAILED},
}


def move(row: BatchRow, to: JobState, now_us: int) -> BatchRow:
    """The batch in its next state, which it entered now. Asserts that it may follow."""
    assert to in _NEXT.get(JobState(row.status), ()), (row.status, to)
    return replace(row, status=to.value, **{f"{to}_us": now_us})  # type: ignore[arg-type]


def window_s(text: str) -> int:
    """Seconds of a completion window.

    Raises:
        InvalidField: no duration, or shorter than 1h or longer than 7d.
    """
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not WINDOW_S_MIN <= seconds <= WINDOW_S_MAX:
        raise InvalidField(
            "Invalid 'completion_window': expected a duration from '1h' to '7d', such as '24h'.",
            param="completion_window",
        )
    return seconds


def new_batch_id() -> str:
    return "batch_" + secrets.token_hex(16)


def line_id(batch_id: str, line: int) -> str:
    """A line's request id: the same however often it is tried, so it is billed once at most."""
    return f"batch_req_{batch_id.removeprefix('batch_')}_{line}"
