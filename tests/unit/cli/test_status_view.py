from __future__ import annotations

from typing import Any

import pytest
from rich.console import RenderableType

from inferd.cli.status_view import duration, status_view
from inferd.cli.tables import plain_console

WORKER = {
    "worker": "chat-1-1",
    "attached": False,
    "state": "ready",
    "reason": "",
    "outlook": "",
    "progress": "",
    "since_s": 3_700.0,
    "pid": 12,
    "url": "http://127.0.0.1:1",
    "inflight": 3,
    "inflight_max": 1_000,
    "outstanding_tokens": 12_345,
    "kv_utilization": 0.256,
    "engine_running": 3,
    "engine_waiting": 0,
}
STATUS: dict[str, Any] = {
    "object": "status",
    "version": "1.2.3",
    "config": "/srv/inferd.toml",
    "uptime_s": 90_061.0,
    "ready": True,
    "state": "ready",
    "requests_in_flight": 4,
    "pools": [
        {
            "pool": "chat@1",
            "model": "chat",
            "version": "1",
            "state": "ready",
            "waiting": {"interactive": 7, "batch": 1_000},
            "waiting_by_team": {"ads": 2, "search": 1_005},
            "oldest_wait_s": 1.25,
            "workers": [
                WORKER,
                WORKER
                | {
                    "worker": "chat-1-2",
                    "state": "loading",
                    "progress": "weights: [bold]3/8",
                },
                WORKER
                | {
                    "worker": "chat-1-3",
                    "state": "failed",
                    "reason": "it exited",
                    "outlook": "restart 1 soon",
                    "kv_utilization": None,
                },
                WORKER | {"worker": "chat-1-a1", "attached": True},
            ],
        }
    ],
    "teams": [
        {
            "team": "search",
            "tokens_left": 5_000,
            "burst_tokens": 100_000,
            "outstanding_tokens": 10,
            "outstanding_requests": 1,
        },
        {
            "team": "ads",
            "tokens_left": None,
            "burst_tokens": None,
            "outstanding_tokens": 0,
            "outstanding_requests": 0,
        },
    ],
}


def rows(view: RenderableType, width: int = 200) -> list[str]:
    """Lines of the page, with one space between the words."""
    console = plain_console(width)
    with console.capture() as capture:
        console.print(view)
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_everything_is_on_the_page() -> None:
    lines = rows(status_view(STATUS))
    assert lines[0] == "inferd 1.2.3: ready, up 1 d 1 h, 4 requests in flight, /srv/inferd.toml"
    assert "chat@1 ready 2/4 ready 7 1,000 1.2 s search 1,005, ads 2" in lines
    assert "chat-1-1 ready 1 h 1 min 3/1,000 12,345 26%" in lines
    assert "chat-1-2 loading 1 h 1 min 3/1,000 12,345 26% weights: [bold]3/8" in lines
    assert "chat-1-3 failed 1 h 1 min 3/1,000 12,345 ? it exited; restart 1 soon" in lines
    assert "chat-1-a1 ready 1 h 1 min 3/1,000 12,345 26% attached, http://127.0.0.1:1" in lines
    assert "search 5,000 100,000 1 10" in lines
    assert "ads no limit 0 0" in lines


def test_what_is_copied_is_never_broken() -> None:
    words = {word for line in rows(status_view(STATUS), width=70) for word in line.split()}
    assert {"chat@1", "chat-1-1", "chat-1-2", "chat-1-3", "chat-1-a1"} <= words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.9, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3_599, "59 min"),
        (3_600, "1 h 0 min"),
        (86_399, "23 h 59 min"),
        (86_400, "1 d 0 h"),
        (1_000_000, "11 d 13 h"),
    ],
)
def test_durations_are_told_in_what_matters(seconds: float, text: str) -> None:
    assert duration(seconds) == text
