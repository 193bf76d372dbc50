"""Kept text. Goal: found again, seen by its owner alone, and gone when it is time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from inferd.storage import recordings
from inferd.storage.recordings import DAY_HOURS, HOUR_US, Recorded

NOW_US = 500_000 * HOUR_US
ONE = Recorded(
    "req_1", "search", NOW_US, "/v1/chat/completions", '{"a": "ü"}', "data: x", cut=False
)


def test_it_is_found_in_its_hour_and_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    other = replace(ONE, request_id="req_2", answer="another")
    recordings.append(folder, [ONE, other, replace(ONE, team="ads", answer="theirs")])
    assert recordings.find(folder, "search", "req_1", NOW_US) == ONE
    assert recordings.find(folder, "search", "req_2", NOW_US + HOUR_US) == other
    assert recordings.find(folder, "search", "req", NOW_US) is None
    assert recordings.find(folder, "mail", "req_1", NOW_US) is None
    assert recordings.find(folder, "search", "req_1", NOW_US + 2 * HOUR_US) is None


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    recordings.append(folder, [ONE])
    modes = {path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}
    assert modes == {0o700, 0o600}


def test_a_line_that_a_crash_has_cut_hides_no_other(tmp_path: Path) -> None:
    recordings.append(tmp_path, [ONE])
    (file,) = tmp_path.rglob("*.jsonl")
    file.write_bytes(file.read_bytes() + file.read_bytes()[:40] + b"\n")
    later = replace(ONE, request_id="req_2")
    recordings.append(tmp_path, [later])
    assert recordings.find(tmp_path, "search", "req_2", NOW_US) == later


def test_old_hours_go_and_the_oldest_of_too_many(tmp_path: Path) -> None:
    hours = [replace(ONE, at_us=NOW_US - n * HOUR_US, request_id=f"req_{n}") for n in range(4)]
    old = replace(ONE, at_us=NOW_US - (2 * DAY_HOURS + 1) * HOUR_US, request_id="old")
    recordings.append(tmp_path, [*hours, old, replace(old, team="ads")])
    recordings.trim(tmp_path, "search", 2, 1_000_000, NOW_US)
    assert recordings.find(tmp_path, "search", "old", old.at_us) is None
    assert recordings.find(tmp_path, "ads", "old", old.at_us) is not None
    (whole, _) = (
        one.bytes for one in sorted(recordings.kept(tmp_path), key=lambda one: -one.bytes)
    )
    recordings.trim(tmp_path, "search", 2, whole - 1, NOW_US)
    left = {
        one.request_id
        for one in hours
        if recordings.find(tmp_path, "search", one.request_id, one.at_us)
    }
    assert left == {"req_0", "req_1", "req_2"}
    assert recordings.delete(tmp_path, "search") > 0
    assert [one.team for one in recordings.kept(tmp_path)] == ["ads"]
