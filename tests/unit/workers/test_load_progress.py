from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferd.workers.load_progress import LoadProgress
from inferd.workers.process import Activity

IDLE = Activity(cpu_s=0.0, read_bytes=0)
PROBE = 'INFO: 127.0.0.1:5 - "GET /ready HTTP/1.1" 503 Service Unavailable'


def test_silence_is_a_stall() -> None:
    progress = LoadProgress(now=100.0)
    for second in range(1, 31):
        progress.look(100.0 + second, IDLE)
    assert progress.stalled_s(130.0) == 30.0


def test_output_is_progress_but_for_the_echo_of_our_probes() -> None:
    progress = LoadProgress(now=0.0)
    progress.hear(10.0, [PROBE, PROBE])
    assert progress.stalled_s(10.0) == 10.0
    progress.hear(20.0, ["Load weight begin. avail mem=21.05 GB"])
    assert progress.stalled_s(25.0) == 5.0


def test_a_load_that_only_computes_is_getting_on() -> None:
    progress = LoadProgress(now=0.0)
    for step in range(1, 500):
        progress.look(5.0 * step, Activity(cpu_s=5.0 * step, read_bytes=0))
    assert progress.stalled_s(5.0 * 499) == 0.0


def test_a_load_that_only_reads_is_getting_on() -> None:
    progress = LoadProgress(now=0.0)
    for step in range(1, 100):
        progress.look(5.0 * step, Activity(cpu_s=0.0, read_bytes=50_000_000 * step))
    assert progress.stalled_s(5.0 * 99) == 0.0


@given(st.floats(min_value=0.0, max_value=0.05))
def test_answering_probes_is_not_getting_on(cpu_share: float) -> None:
    progress = LoadProgress(now=0.0)
    for step in range(1, 13):
        progress.look(5.0 * step, Activity(cpu_s=5.0 * step * cpu_share, read_bytes=999 * step))
    assert progress.stalled_s(60.0) == 60.0


def test_a_child_that_ends_takes_its_share_along_without_harm() -> None:
    progress = LoadProgress(now=0.0)
    progress.look(5.0, Activity(cpu_s=100.0, read_bytes=10**9))
    progress.look(10.0, Activity(cpu_s=3.0, read_bytes=10**6))
    assert progress.stalled_s(10.0) == 5.0
    progress.look(15.0, Activity(cpu_s=7.0, read_bytes=10**6))
    assert progress.stalled_s(15.0) == 0.0


def test_people_see_the_phase_and_the_last_whole_line() -> None:
    progress = LoadProgress(now=0.0)
    assert progress.text == "starting python"
    progress.hear(1.0, ["[2026-11-30 23:01:02] Load weight begin. avail mem=21 GB", "  warn("])
    assert progress.text == "loading weights: Load weight begin. avail mem=21 GB"
    progress.hear(2.0, ["Multi-thread loading shards:  50% Completed | 1/2"])
    assert progress.text == "loading weights: Multi-thread loading shards:  50% Completed | 1/2"


def test_only_the_last_lines_are_kept() -> None:
    progress = LoadProgress(now=0.0)
    progress.hear(1.0, (f"line {n}" for n in range(10_000)))
    assert len(progress.lines) == 200
    assert progress.lines[-1] == "line 9999"
