"""A short `scripts/soak chaos`: the long one shows that this also holds after half an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.soaks.chaos import Plan, run
from scripts.soaks.chaos_clients import COMPLETE, LEFT
from tests.house import repository

pytestmark = [pytest.mark.slow, pytest.mark.real_time(timeout_s=120)]


async def test_every_request_is_answered_or_told_and_billed_for_what_it_was(tmp_path: Path) -> None:
    plan = Plan(
        seconds=12,
        seed=7,
        clients=6,
        pause_s=0.2,
        every_s=1.2,
        workers=2,
        speed=10.0,
        first="kill inferd",
    )
    chaos = await run(plan, tmp_path, quiet=True)
    report = chaos.report()
    assert report["wrong"] == []
    assert report["faults"]["kill inferd"] >= 1
    assert report["requests"][COMPLETE] > 20
    assert report["requests"][LEFT] > 0
    assert sum(report["faults"].values()) > 1
    assert chaos.picture().startswith("<svg ")


def test_the_picture_of_a_long_run_is_shown() -> None:
    assert "(chaos.svg)" in repository.read("docs/watchdog.md")
