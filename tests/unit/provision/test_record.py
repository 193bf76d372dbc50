"""The note of an install. Goal: it comes back as it was, and a spoilt one counts as none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferd.provision import record
from inferd.provision.recipes import Device
from inferd.provision.record import InstallRecord, Step

RECORD = InstallRecord(Device.CPU, "digest", "3.12.1", {Step.PACKAGES: "2026-11-30T12:00:00Z"})


def test_a_record_comes_back(tmp_path: Path) -> None:
    record.save(tmp_path, RECORD)
    assert record.load(tmp_path) == RECORD
    assert [path.name for path in tmp_path.iterdir()] == [record.FILE]


def test_steps_are_added_and_taken_back() -> None:
    more = RECORD.with_step(Step.PROOF, "later")
    assert set(more.steps) == {Step.PACKAGES, Step.PROOF}
    assert more.without(Step.PACKAGES, Step.MODEL).steps == {Step.PROOF: "later"}
    assert set(RECORD.steps) == {Step.PACKAGES}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps({"format": 2}),
        json.dumps({"format": 1, "device": "abacus", "recipe": "", "python": "", "steps": {}}),
        json.dumps({"format": 1, "device": "cpu", "recipe": "", "python": "", "steps": []}),
        json.dumps({"format": 1, "device": "cpu", "recipe": "", "python": "", "steps": {"x": 1}}),
    ],
)
def test_a_spoilt_record_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / record.FILE).write_text(text)
    assert record.load(tmp_path) is None


def test_no_record_is_none(tmp_path: Path) -> None:
    assert record.load(tmp_path) is None
    assert record.load(tmp_path / "nowhere") is None
