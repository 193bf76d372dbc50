"""A changed inferd.toml: applied while streams run, or refused whole with the reason."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

from inferd.config.load import LoadedConfig
from inferd.errors import ConfigError
from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import attached, gateway, until
from tests.http.raw_connection import ask, chat, client_of, holding, raw_connection
from tests.http.test_keys import bearer
from tests.http.test_refusals import assert_error

pytestmark = pytest.mark.real_time

ADS = '[[teams]]\nname = "ads"\n'
SECOND_MODEL = """
[[models]]
name = "second"
default_version = "7"
context_tokens_max = 1_000
output_tokens_max = 100
[[models.versions]]
version = "7"
attached = [{{ url = "{url}", model = "chat" }}]
"""


async def test_everything_live_changes_while_a_stream_runs(
    tmp_path: Path, paced: EngineProcess, fast: EngineProcess
) -> None:
    limits = {"tokens_per_s": 10, "burst_tokens": 50_000}
    async with gateway(tmp_path, paced, team=limits) as inferd:
        async with client_of(inferd) as client:
            client.chat(holding(max_tokens=80))
            status, headers = await client.head()
            changes = await inferd.reload(
                attached(paced, fast),
                team={**limits, "burst_tokens": 40_000},
                more=ADS + SECOND_MODEL.format(url=fast.base_url),
            )
            await inferd.until_ready(3)
            ads = await inferd.new_key(team="ads")
            async with raw_connection(inferd.public, bearer(ads)) as newcomer:
                newcomer.chat(chat(model="second", max_tokens=3))
                assert (await newcomer.answer()).json["model"] == "second"
            stream = await client.rest(status, headers)
            after = await ask(inferd, chat(max_tokens=1))
        workers = {row.worker for row in await inferd.rows()}
    assert stream.told.done
    assert {type(change).__name__ for change in changes} == {
        "TeamAdded",
        "TeamChanged",
        "ModelAdded",
        "AttachedAdded",
    }
    assert after.headers["x-ratelimit-limit-tokens"] == "40000"
    assert int(after.headers["x-ratelimit-remaining-tokens"]) < 40_000, "what was spent stays spent"
    assert "second-7-a1" in workers


async def test_a_file_that_was_read_late_does_not_undo_a_later_reload(
    tmp_path: Path, paced: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(tmp_path, paced) as inferd, asyncio.TaskGroup() as group:
        node = inferd.app.node
        read_again, begun, goes_on = node._read_again, asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def slow() -> LoadedConfig:
            loaded = read_again()
            loop.call_soon_threadsafe(begun.set)
            assert goes_on.wait(20)
            return loaded

        monkeypatch.setattr(node, "_read_again", slow)

        async def first() -> None:
            with pytest.raises(ConfigError, match="began after this one"):
                await node.reload()

        group.create_task(first())
        await begun.wait()
        monkeypatch.setattr(node, "_read_again", read_again)
        await inferd.reload(attached(paced), more=ADS)
        goes_on.set()
    assert [team.name for team in node.config.teams][-1] == "ads"


async def test_what_is_removed_goes_in_order(
    tmp_path: Path, paced: EngineProcess, twin: EngineProcess
) -> None:
    more = ADS + SECOND_MODEL.format(url=twin.base_url)
    async with gateway(tmp_path, paced, twin, more=more) as inferd:
        await inferd.until_ready(3)
        ads = await inferd.new_key(team="ads")
        async with (
            raw_connection(inferd.public, bearer(ads)) as foreign,
            client_of(inferd) as first,
            client_of(inferd) as second,
        ):
            for client in (first, second):
                client.chat(holding(max_tokens=80))
            heads = [await client.head() for client in (first, second)]
            foreign.chat(chat(model="second", max_tokens=1))
            assert (await foreign.answer()).status == 200
            await inferd.reload(attached(paced), more="")
            foreign.chat(chat(max_tokens=1))
            assert_error(await foreign.answer(), 401, "invalid_api_key")
            assert_error(await ask(inferd, chat(model="second")), 404, "model_not_found")
            before = (await inferd.engines[1].stats())["counts"]["POST /v1/chat/completions"]
            for _ in range(4):
                assert (await ask(inferd, chat(max_tokens=1))).status == 200
            counts = (await inferd.engines[1].stats())["counts"]
            streams = [await c.rest(*head) for c, head in zip((first, second), heads, strict=True)]
        await until(lambda: set(inferd.app.node.supervisor.workers) == {"chat-1-a1"})
        exposition = await inferd.metrics()
    assert all(stream.told.done for stream in streams), "running streams end well, on both workers"
    assert counts["POST /v1/chat/completions"] == before
    states = [line for line in exposition.splitlines() if line.startswith("inferd_worker_state{")]
    assert all('worker="chat-1-a1"' in line for line in states)


@pytest.mark.parametrize("way", ["signal", "admin"])
async def test_a_file_that_is_wrong_is_refused_whole_with_every_line(
    tmp_path: Path, fast: EngineProcess, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        inferd.write_config(attached(fast), team={"wieght": 2}, more=f'{ADS}models = ["chta"]\n')
        if way == "signal":
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: "reload refused" in caplog.text)
            told = caplog.text
        else:
            refused = await inferd.ask_admin("POST", "/admin/v1/reload", status=400)
            assert refused["error"]["code"] == "invalid_config"
            told = refused["error"]["message"]
        assert (await ask(inferd, chat(max_tokens=1))).status == 200
        assert [team.name for team in inferd.app.node.config.teams] == ["search"]
        exposition = await inferd.metrics()
    lines = [line for line in told.splitlines() if "inferd.toml:" in line]
    assert any("wieght" in line and 'did you mean "weight"' in line for line in lines), told
    assert any("chta" in line for line in lines), told
    assert 'inferd_config_reloads_total{outcome="refused"} 1.0' in exposition


async def test_a_change_that_needs_a_restart_says_which_and_applies_nothing_else(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        with pytest.raises(ConfigError) as caught:
            await inferd.reload(attached(fast), server={"stall_s": 9.0}, more=ADS)
        (problem,) = caught.value.problems
        assert "server.stall_s" in problem
        assert "restart" in problem
        assert len(inferd.app.node.config.teams) == 1
        (applied,) = await inferd.reload(attached(fast), more=ADS)
    assert type(applied).__name__ == "TeamAdded"


async def test_a_signal_applies_a_good_file_and_the_admin_hears_what_changed(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        inferd.write_config(attached(fast), more=ADS)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: len(inferd.app.node.config.teams) == 2)
        inferd.write_config(attached(fast, slots=3), queue={"waiting_max": 5})
        told = await inferd.ask_admin("POST", "/admin/v1/reload")
        await until(lambda: inferd.app.node.fleet.workers["chat-1-a1"].inflight_max == 3)
        await inferd.until_ready(1)
        assert (await ask(inferd, chat(max_tokens=1))).status == 200
        unchanged = await inferd.ask_admin("POST", "/admin/v1/reload")
    assert told["object"] == "reload"
    assert any("ads is removed" in change["text"] for change in told["changes"])
    assert unchanged["changes"] == []


async def test_who_waits_for_a_model_that_is_removed_hears_it_at_once(
    tmp_path: Path, paced: EngineProcess
) -> None:
    more = SECOND_MODEL.format(url=paced.base_url).replace(
        'model = "chat"', 'model = "chat", inflight_max = 1'
    )
    async with gateway(tmp_path, paced, more=more) as inferd:
        await inferd.until_ready(2)
        async with client_of(inferd) as holder, asyncio.TaskGroup() as clients:
            holder.chat(holding(model="second", max_tokens=60))
            head = await holder.head()
            waiting = clients.create_task(ask(inferd, chat(model="second")))
            await until(lambda: inferd.held().get("waiting for second@7") == 1)
            await inferd.reload(attached(paced), more="")
            assert_error(await waiting, 503, "no_worker", "server_error")
            assert (await holder.rest(*head)).told.done
