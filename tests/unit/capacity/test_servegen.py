"""Requests drawn from real clients' rates and lengths, and how evenly such a run serves them."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from inferd.capacity.fairness import fairness
from inferd.capacity.plot import svg
from inferd.capacity.servegen import servegen
from inferd.capacity.simulate import ENGINES, Scenario, simulate
from inferd.capacity.workloads import Arrival, Workload, load
from inferd.errors import StartError

TRACES = Path(__file__).parents[2] / "data" / "traces"


def test_the_sample_has_the_clients_their_skew_and_the_same_requests_every_time() -> None:
    stream = servegen(TRACES / "servegen_rates.csv.gz", "m-large", 3_000)
    assert len(stream.arrivals) == 3_000
    assert stream == servegen(TRACES / "servegen_rates.csv.gz", "m-large", 3_000)
    counts: dict[str, int] = {}
    for one in stream.arrivals:
        counts[one.team] = counts.get(one.team, 0) + 1
    assert len(counts) > 15
    assert max(counts.values()) > 3_000 / 3, "one client sends most"
    assert [one.at_s for one in stream.arrivals] == sorted(one.at_s for one in stream.arrivals)


def test_a_span_is_sampled_over_all_of_its_time() -> None:
    rates = TRACES / "servegen_rates.csv.gz"
    day = servegen(rates, "m-large", 2_000, span_s=86_400)
    assert len(day.arrivals) == 2_000
    assert day == servegen(rates, "m-large", 2_000, span_s=86_400)
    assert day != servegen(rates, "m-large", 2_000, span_s=86_400, seed=8)
    first, last = day.arrivals[0].at_s, day.arrivals[-1].at_s
    assert first < 3_600
    assert 82_800 < last < 86_400
    in_the_morning = sum(one.at_s < 43_200 for one in day.arrivals)
    assert 200 < in_the_morning < 1_800


def test_a_model_that_has_no_clients_is_said_so() -> None:
    with pytest.raises(StartError, match="no client of m-tiny"):
        servegen(TRACES / "servegen_rates.csv.gz", "m-tiny")


@pytest.mark.parametrize(
    ("name", "rows"), [("mooncake_conversation.jsonl.gz", 400), ("azure2023_conv.csv.gz", 300)]
)
def test_recorded_traces_are_read_by_what_is_in_them(name: str, rows: int) -> None:
    assert len(load("trace", TRACES / name).arrivals) == rows


def test_a_ledger_export_is_a_trace_without_what_was_refused_or_our_own(tmp_path: Path) -> None:
    row = {
        "ts_us": 1_000_000,
        "team": "search",
        "priority": "interactive",
        "prompt_tokens": 640,
        "cached_tokens": 256,
        "completion_tokens": 20,
    }
    rows = [
        row,
        {**row, "ts_us": 3_000_000, "team": "night", "priority": "batch"},
        {**row, "team": "system"},
        {**row, "prompt_tokens": 0},
    ]
    path = tmp_path / "usage.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(one) for one in rows))
    first, second = load("trace", path).arrivals
    assert (first.team, first.prompt_tokens, len(first.keys)) == ("search", 640, 4)
    assert (second.team, second.is_batch) == ("night", True)
    path.write_bytes(orjson.dumps(rows[2]))
    with pytest.raises(StartError, match="no rows of served requests"):
        load("trace", path)


def overloaded() -> Scenario:
    names = ("one", "two")
    arrivals = tuple(
        Arrival(number * 0.01, 1_000, 100, (), names[number % 2]) for number in range(3_000)
    )
    weights = {"one": 1, "two": 2}
    return Scenario(
        Workload("even", arrivals, 64),
        ENGINES["8b"],
        1,
        weights=weights,
        refuse_late=False,
        warm=0.0,
    )


def test_teams_that_wait_are_served_evenly_within_the_bound() -> None:
    run = simulate(overloaded())
    found = fairness(run, window_s=10)
    assert found.windows >= 2
    assert found.worst_jain > 0.99
    assert 0 < found.gap < found.bound


def test_a_picture_has_a_line_for_each_run_and_escapes_names() -> None:
    run = simulate(overloaded())
    picture = svg([run, run])
    assert picture.startswith("<svg")
    assert picture.count("<polyline") == 4
    assert "two" in picture
