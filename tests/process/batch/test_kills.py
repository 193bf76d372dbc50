"""inferd is killed while a batch runs: the short form of `scripts/soak batch`."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from scripts.soaks.batch import all_runs

pytestmark = pytest.mark.real_time(timeout_s=120)


async def test_every_line_ends_once_whatever_is_killed(tmp_path: Path) -> None:
    args = argparse.Namespace(
        runs=1,
        kills=2,
        power_cuts=1,
        worker_kills=1,
        stops=1,
        workers=2,
        lines=80,
        within=0.3,
        speed=25.0,
        seed=7,
        at_once=1,
        minutes=1.0,
        random_weights=False,
        real=False,
        keep=None,
        json=True,
    )
    outcomes = await all_runs(args, tmp_path)
    assert [outcome.problems for outcome in outcomes] == [[], []]
    assert outcomes[1].acts == {"inferd": 1, "power": 1, "worker": 1, "stop": 1}
