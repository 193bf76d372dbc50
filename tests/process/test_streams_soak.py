"""A short `scripts/soak streams`: the long one shows that nothing grows in ten minutes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.soaks.streams import LOADS, REFUSALS, run

pytestmark = [pytest.mark.slow, pytest.mark.real_time(timeout_s=120)]


async def test_all_kinds_of_clients_at_once_leave_nothing_but_their_rows(tmp_path: Path) -> None:
    report = await run(tmp_path, seconds=3.0, seed=3)
    # What grows is for the long run to say: here everything has just begun.
    assert [line for line in report.wrong if "grow" not in line] == []
    kinds = {*LOADS, "leave", "hardly read"}
    assert all(report.begun[kind] for kind in kinds)
    refused = sum(report.begun[f"refused for its {what}"] for what in REFUSALS)
    assert refused > 0
    assert sum(report.rows.values()) == sum(report.begun.values()) - refused
    assert report.rows["completed"] >= sum(report.begun[kind] for kind in LOADS)
    assert len(report.memory) >= 2
    told = json.loads(json.dumps(report.told()))
    assert told["begun"] == report.begun
    assert told["rows"] == report.rows
