"""What a run of `scripts/bench relay` says: ratios within a round, and budgets that are broken."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

from scripts.benchmarks.relay.plot import draw
from scripts.benchmarks.relay.report import (
    BUDGET_EVENT_X,
    Cost,
    broken_budgets,
    markdown,
    rows,
    table,
)

DIRECT = Cost(0.0, 0.0, 0.0, 1_000.0, 2_000.0, 41_000.0, 0)
SPLICE = Cost(10.0, 50.0, 1_000.0, 1_100.0, 2_200.0, 41_000.0, 0)
INFERD = Cost(15.0, 500.0, 20_000.0, 1_500.0, 3_000.0, 41_000.0, 0)
DEAR = replace(INFERD, event_us=10.0 * BUDGET_EVENT_X * 1.01)


def seen(*inferd: Cost) -> dict[str, list[Cost]]:
    rounds = len(inferd)
    return {"direct": [DIRECT] * rounds, "splice": [SPLICE] * rounds, "inferd": list(inferd)}


def test_ratios_are_taken_within_a_round_and_times_are_what_is_added() -> None:
    header, direct, _, inferd = rows(seen(INFERD, replace(INFERD, event_us=13.0), INFERD))
    told = dict(zip(header[1:], inferd[1:], strict=True))
    assert told["us/event"] == "15.0"
    assert inferd[2] == "1.30/1.50/1.50"
    assert inferd[4] == "10.00/10.00/10.00"
    assert told["TTFT +p99 ms"] == "1.00/1.00/1.00"
    assert (told["KB/stream, first round"], told["later"]) == ("20.0", "20.0")
    assert "-" in direct
    assert len(table([header, inferd]).splitlines()) == 2


def test_the_table_for_the_docs_has_as_many_cells_in_every_line() -> None:
    lines = markdown(list(rows(seen(INFERD)))).splitlines()
    assert len(lines) == 5
    assert len({line.count("|") for line in lines}) == 1


def test_a_budget_is_broken_by_the_median_and_by_anything_lost() -> None:
    assert broken_budgets(seen(INFERD, DEAR, INFERD)) == []
    (said,) = broken_budgets(seen(DEAR, DEAR, INFERD))
    assert "event_us" in said
    (said,) = broken_budgets(seen(INFERD, replace(INFERD, lost=3)))
    assert said.startswith("3 requests")


def test_the_plot_shows_everybody_but_the_way_without_a_gateway() -> None:
    picture = ET.fromstring(draw(seen(INFERD, DEAR)))
    texts = [element.text for element in picture.iter() if element.tag.endswith("text")]
    assert texts.count("inferd") == texts.count("splice") == 2
    assert "direct" not in texts


def test_who_answered_no_stream_has_no_bar_for_it() -> None:
    silent = replace(INFERD, event_us=float("nan"), ttft_p50_us=float("nan"))
    picture = ET.fromstring(draw({**seen(INFERD), "mute": [silent]}))
    texts = [element.text for element in picture.iter() if element.tag.endswith("text")]
    assert texts.count("mute") == 1
