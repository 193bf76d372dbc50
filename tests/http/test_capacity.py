"""What admins are told of capacity: what requests used, what was idle, after a restart too."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import gateway
from tests.fakes.inferd_process import Folder
from tests.http.raw_connection import client_of, holding

pytestmark = pytest.mark.real_time(timeout_s=60)


async def serve_a_while(tmp_path: Path, engine: EngineProcess) -> None:
    async with gateway(tmp_path, engine, slots=4) as inferd, client_of(inferd) as client:
        client.chat(holding(max_tokens=30))
        await client.answer()


async def test_used_and_idle_capacity_stand_beside_the_usage(
    tmp_path: Path, paced: EngineProcess
) -> None:
    await serve_a_while(tmp_path, paced)
    first = json.loads((await Folder(tmp_path).run("usage", "--since", "1d", "--json")).out)
    await serve_a_while(tmp_path, paced)
    folder = Folder(tmp_path)
    told = json.loads((await folder.run("usage", "--since", "1d", "--json")).out)
    (pool,) = told["capacity"]
    assert pool["pool"] == "chat@1"
    assert 0 < pool["interactive"] < 0.3, "one of four slots, some of the time"
    assert pool["batch"] == 0
    assert pool["interactive"] + pool["batch"] + pool["idle"] == pytest.approx(1)
    assert pool["slot_s"] == pytest.approx(4 * pool["worker_s"])
    assert pool["worker_s"] > first["capacity"][0]["worker_s"], "a restart adds"

    shown = await folder.run("usage", "--since", "1d", "--by", "day")
    assert "Capacity, and what it was used for:" in shown.err
    assert "chat@1" in shown.out
    team = json.loads((await folder.run("usage", "--team", "search", "--json")).out)
    assert team["capacity"] is None, "no team has capacity of its own"
    wrong = await folder.run("usage", "export", "--capacity", "--team", "search")
    assert wrong.code == 2
    exported = await folder.run("usage", "export", "--capacity")
    rows = list(csv.DictReader(io.StringIO(exported.out)))
    assert {row["pool"] for row in rows} == {"chat@1"}
    assert sum(int(row["slot_us"]) for row in rows) == pytest.approx(pool["slot_s"] * 1e6, rel=1e-6)
