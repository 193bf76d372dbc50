"""The commands about the bill, as an admin runs them."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pyarrow.parquet
import pytest

from inferd.storage.usage import COLUMNS
from tests.fakes.engines import fake_engine
from tests.fakes.inferd_process import Folder

PRICES = "prices = { input = 0.5, output = 1.5 }"


@pytest.mark.real_time(timeout_s=120)
async def test_the_bill_is_shown_with_a_server_and_without(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with fake_engine(tmp_path, model="chat", speed=200) as engine:
        folder.write(f'{PRICES}\nattached = [{{ url = "{engine.base_url}" }}]')
        key = await folder.key()
        async with folder.serving() as serving, aiohttp.ClientSession() as http:
            await serving.until("is ready after")
            body = {
                "model": "chat",
                "messages": [{"role": "user", "content": "Hello"}],
                "max_tokens": 4,
            }
            headers = {"Authorization": f"Bearer {key}"}
            url = f"{folder.base_url}/chat/completions"
            async with http.post(url, json=body, headers=headers) as answer:
                told = await answer.json()
                request_id = answer.headers["x-request-id"]
            async with http.post(url, json={"model": "chat"}, headers=headers) as answer:
                refused_id = answer.headers["x-request-id"]

            life = await folder.run("why", told["id"])
            assert life.code == 0, life.err
            assert request_id in life.out
            assert "placed on chat-1-a1" in life.out
            refused = await folder.run("why", refused_id)
            assert "refused before it was placed" in refused.out

            balance = await folder.run("reconcile")
            assert (balance.code, balance.out.split()[-1]) == (0, "balanced"), balance.out

            look = json.loads(
                (await folder.run("top", "--once", "--json", "--interval", "0.2")).out
            )
            assert look["status"]["ready"] is True
            assert [one["team"] for one in look["teams"]] == ["search"]
            async with folder.in_terminal("top") as terminal:
                await terminal.until("q quits")
                await terminal.until("search")
                terminal.type("q")
                assert await terminal.end() == 0

        usage = json.loads((await folder.run("usage", "--by", "team,day", "--json")).out)
        tokens = told["usage"]
        owed = tokens["prompt_tokens"] * 500_000 + tokens["completion_tokens"] * 1_500_000
        assert usage["total"]["cost_pico"] == owed
        table = await folder.run("usage")
        assert usage["total"]["cost"] in table.out

        lines = (await folder.run("usage", "export", "--format", "jsonl")).out.splitlines()
        (row,) = [json.loads(line) for line in lines]
        assert tuple(row) == COLUMNS
        stored = await folder.run("usage", "export", "--format", "parquet", "-o", "l.parquet")
        assert stored.code == 0, stored.err
        assert pyarrow.parquet.read_table(tmp_path / "l.parquet").to_pylist() == [row]

        done = json.loads((await folder.run("audit", "--json")).out)
        assert [one["action"] for one in done] == ["inferd keys create"]
        unknown = await folder.run("why", "req_none")
        assert (unknown.code, "No request 'req_none'" in unknown.err) == (1, True)


@pytest.mark.real_time
async def test_without_a_database_the_next_step_is_told(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.attach("http://127.0.0.1:9")
    for command in (["usage"], ["audit"], ["why", "x"], ["usage", "export"]):
        done = await folder.run(*command)
        assert (done.code, "`inferd serve` makes it" in done.err) == (1, True), done.err
    for command in (["usage", "--since", "soon"], ["usage", "--by", "colour"]):
        assert (await folder.run(*command)).code == 2
