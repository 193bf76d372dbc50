"""`inferd simulate` as programs read it, and the picture it draws."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import orjson
from typer.testing import CliRunner

from inferd.cli.main import make_app

TRACE = Path(__file__).parents[2] / "data" / "traces" / "mooncake_conversation.jsonl.gz"


def test_runs_side_by_side_are_json_for_programs_and_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "runs.svg"
    done = CliRunner().invoke(
        make_app(),
        [
            *("simulate", "--workload", "conv", "--trace", str(TRACE), "--replicas", "4"),
            *("--policy", "predicted_ttft", "--policy", "round_robin", "--teams", "3"),
            *("--plot", str(picture), "--json"),
        ],
    )
    assert done.exit_code == 0, done.output
    ours, other = orjson.loads(done.stdout)
    assert (ours["policy"], other["policy"]) == ("predicted_ttft", "round_robin")
    assert sum(ours["reasons"].values()) > 0
    assert abs(sum(ours["shares"].values()) - 1) < 1e-9
    assert ours["ttft_p95_over_time"]
    assert ET.parse(picture).getroot().tag.endswith("svg")
