from __future__ import annotations

from typing import Any

from inferd.cli.batch_view import after_submit, ends, in_full, progress

CREATED = 1_800_000_000


def batch(status: str = "in_progress", **changes: Any) -> dict[str, Any]:
    """As the API tells it."""
    ended = dict.fromkeys(("completed_at", "failed_at", "expired_at", "cancelled_at"))
    usage = {
        "input_tokens": 1_200,
        "input_tokens_details": {"cached_tokens": 200},
        "output_tokens": 34,
        "total_tokens": 1_234,
    }
    return {
        "id": "batch_1",
        "status": status,
        "endpoint": "/v1/chat/completions",
        "model": "chat",
        "input_file_id": "file-1",
        "output_file_id": None,
        "error_file_id": None,
        "errors": None,
        "metadata": None,
        "created_at": CREATED,
        "expires_at": CREATED + 3_600,
        "completion_window": "1h",
        "request_counts": {"total": 20, "completed": 7, "failed": 1},
        "usage": usage,
        "inferd": outlook(None),
        **ended,
        **changes,
    }


def outlook(after_s: int | None, cost: str = "0.00") -> dict[str, Any]:
    """Done so many seconds after its creation, in a window of an hour."""
    return {
        "estimated_completion_at": None if after_s is None else CREATED + after_s,
        "in_time": None if after_s is None else after_s <= 3_600,
        "cost": cost,
        "currency": "EUR",
    }


def test_whether_it_is_feasible_is_said_when_it_is_submitted() -> None:
    in_time = after_submit(batch(inferd=outlook(600)))
    assert in_time.startswith("It should be done about 2027-01-15 08:10 UTC. Follow it: ")
    too_late = after_submit(batch(inferd=outlook(7_200)))
    assert "about 2027-01-15 10:00 UTC, too late: its window ends 2027-01-15 09:00 UTC" in too_late
    assert "being checked" in after_submit(batch("validating"))
    assert "in progress" in after_submit(batch())
    error = {"code": "empty_file", "message": "No requests.", "param": None, "line": None}
    failed = after_submit(batch("failed", errors={"data": [error]}))
    assert failed == "It has failed:\nfile: No requests. (empty_file)"


def test_progress_tells_tokens_cost_and_the_time_left() -> None:
    told = progress(batch(inferd=outlook(7_200, "1.25")), CREATED + 600.0)
    assert told == (
        "in progress, 1,234 tokens, 1.25 EUR, 1 failed, about 1 h 50 min left,"
        " later than its window"
    )
    assert "window" not in progress(batch(inferd=outlook(900)), CREATED + 600.0)
    assert "left" not in progress(batch("finalizing"), CREATED + 600.0)


def test_one_in_full_has_all_of_it_in_order() -> None:
    done = batch(
        "completed",
        completed_at=CREATED + 60,
        output_file_id="file-2",
        error_file_id="file-3",
        inferd=outlook(None, "0.125"),
        metadata={"run": "x"},
    )
    assert ends(done) == "2027-01-15 08:01 UTC"
    names = [line.split()[0] for line in in_full(done).splitlines()[1:]]
    assert names == [
        *("endpoint", "model", "input", "lines", "tokens", "cost", "created", "ends"),
        *("output", "error", "metadata"),
    ]
    assert "by 2027-01-15 09:00 UTC" in in_full(batch())
