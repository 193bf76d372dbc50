"""A short `scripts/soak day`: the long one plays 20,000 requests."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from scripts.soaks.chaos_clients import COMPLETE, Outcome
from scripts.soaks.day import Plan, run
from scripts.soaks.day_accounts import CUT, compare, compare_metrics
from scripts.soaks.day_money import PICO, owed_by_team, prices
from tests.unit.storage.test_usage import ROW

CONFIG = """
[[models]]
name = "chat"
[[models.versions]]
version = "1"
prices = { input = 2.999999, cached_input = 0.300001, output = 11.5, batch_input = 0.2 }
"""


@pytest.mark.slow
@pytest.mark.real_time(timeout_s=120)
async def test_clients_ledger_engines_and_metrics_agree_to_the_token(tmp_path: Path) -> None:
    plan = Plan(requests=250, seconds=8, seed=5, every_s=1.5, first="cut")
    day = await run(plan, tmp_path, quiet=True)
    report = day.report()
    assert report["wrong"] == []
    complete, cut = report["accounts"][COMPLETE], report["accounts"][CUT]
    assert complete["clients"] == complete["ledger"] == complete["engines"]
    assert complete["requests"] > 100
    assert cut["ledger"] == cut["engines"]
    assert cut["ledger"][2] >= cut["clients"][2] > 0
    money = report["money"]
    assert money["recomputed"] == money["ledger"] == money["usage"] != f"{0:.12f}"
    assert sum(report["faults"].values()) > 0


def judged(billed: tuple[int, int, int], **counted: int) -> list[str]:
    """What is wrong with one whole answer of 10, 4, 3 tokens, billed and counted as told."""
    tokens = {"prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 3} | counted
    usage = {
        "prompt_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens": 3,
    }
    outcome = Outcome("search", True, 0.0, kind=COMPLETE, request_id="r", usage=usage)
    prompt, cached, output = billed
    row = replace(
        ROW,
        request_id="r",
        response_id="a",
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=output,
    )
    return compare([outcome], [row], [], {"a": {"pid": 1, **tokens}}, set()).wrong


def test_each_difference_is_found() -> None:
    assert judged((10, 4, 3)) == []
    assert "told (10, 4, 3), billed (10, 4, 2)" in judged((10, 4, 2))[0]
    assert "ledger (10, 4, 3), engine (10, 3, 3)" in judged((10, 4, 3), cached_tokens=3)[0]
    row = replace(ROW, request_id="x", response_id="b")
    nobodys = compare([], [row], [], {}, set()).wrong
    assert "1 requests of search are billed and nobody's" in nobodys
    more = {"c": {"pid": 1, "prompt_tokens": 5, "cached_tokens": 0, "completion_tokens": 1}}
    assert "counted by engines" in compare([], [], [], more, set()).wrong[0]
    shown = 'inferd_completion_tokens_total{team="search",model="chat-large"} 9.0\n'
    _, differ = compare_metrics(shown, [ROW])
    assert "/metrics of search on chat-large: 0 requests, (0, 0, 9)" in differ[0]


def test_money_is_worked_out_from_the_file_alone() -> None:
    of_batch = prices(CONFIG)["chat@1", "batch"]
    assert of_batch[1] == Fraction(2, 10**7), "cached is never dearer than computed in a batch"
    row = {
        "request_id": "r",
        "team": "search",
        "pool": "chat@1",
        "priority": "interactive",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 3,
        "cost_pico": 6 * 2_999_999 + 4 * 300_001 + 3 * 11_500_000,
    }
    sums, wrong = owed_by_team(CONFIG, [row])
    assert (sums["search"] * PICO, wrong) == (row["cost_pico"], [])
    _, wrong = owed_by_team(CONFIG, [row | {"cost_pico": 0}])
    assert len(wrong) == 1
