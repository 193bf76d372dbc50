"""Workers that someone else runs: used while they answer, never started nor killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import aiohttp.web
import orjson
import pytest

from inferd.config.watchdog import Watchdog
from inferd.errors import WorkerUnreachable
from inferd.workers import attached, base
from inferd.workers.attached import AttachedWorker
from inferd.workers.spec import AttachedSpec
from inferd.workers.states import WorkerState
from tests.fakes.engines import EngineProcess, connected, free_port, launch_fake
from tests.process.test_worker_life import CHAT, LONG
from tests.process.worker_rig import Rig, read_on, running, until

pytestmark = pytest.mark.real_time(timeout_s=60)

S = WorkerState
ID = "chat-1-a1"


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "PROBE_LOOK_S", 0.1)
    monkeypatch.setattr(attached, "PROBE_S_MAX", 0.5)


@contextmanager
def engine(folder: Path, *flags: str, api_key: str | None = None) -> Iterator[EngineProcess]:
    """Someone else's engine, which is gone afterwards."""
    process = launch_fake(folder, *flags, model="chat", api_key=api_key)
    try:
        yield process
    finally:
        process.end()


@asynccontextmanager
async def attached_to(
    tmp_path: Path, url: str, *, model: str = "chat", api_key: str | None = None
) -> AsyncIterator[Rig]:
    async with running(tmp_path) as rig:
        rig.supervisor.apply([rig.pool(None, AttachedSpec(model, url, api_key, 7))])
        yield rig


async def test_up_down_up(tmp_path: Path) -> None:
    port = str(free_port())
    async with attached_to(tmp_path, f"http://127.0.0.1:{port}") as rig:
        await rig.diary.entered(S.LOADING, worker_id=ID)
        worker = rig.supervisor.workers[ID]
        with engine(tmp_path, "--port", port):
            await rig.diary.entered(S.READY, worker_id=ID)
            assert worker.client.speaks_sglang
            assert worker.inflight_max == 7
            assert (worker.pid, worker.port, worker.output_path) == (None, None, None)
        await rig.diary.entered(S.FAILED, worker_id=ID)
        assert worker.reason == "The worker does not accept connections."
        assert f"waiting for http://127.0.0.1:{port}: " in worker.progress
        with engine(tmp_path, "--port", port):
            await rig.diary.entered(S.READY, worker_id=ID, times=2)
            assert rig.supervisor.workers[ID] is worker
    assert rig.diary.states(ID) == [
        *("loading", "ready", "failed"),
        *("loading", "ready", "draining", "stopped"),
    ]
    assert rig.diary.warm_ups == []


async def test_how_many_tokens_it_puts_into_an_event_is_asked(tmp_path: Path) -> None:
    with engine(tmp_path, "--stream-interval", "6") as process:
        async with attached_to(tmp_path, process.base_url) as rig:
            await rig.diary.entered(S.READY, worker_id=ID)
            assert rig.supervisor.workers[ID].client.tokens_per_event == 6


async def test_it_is_let_go_but_lives_on(tmp_path: Path) -> None:
    with engine(tmp_path) as process:
        async with attached_to(tmp_path, process.base_url) as rig:
            await rig.diary.entered(S.READY, worker_id=ID)
        assert process.ready()


async def test_who_waits_for_one_that_is_lost_is_told(tmp_path: Path) -> None:
    with engine(tmp_path, "--speed", "1") as process:
        async with attached_to(tmp_path, process.base_url) as rig:
            await rig.diary.entered(S.READY, worker_id=ID)
            async with rig.supervisor.workers[ID].client.exchange(CHAT, LONG) as exchange:
                assert await exchange.head() == 200
                process.end()
                with pytest.raises(WorkerUnreachable):
                    await read_on(exchange)
            await rig.diary.entered(S.FAILED, worker_id=ID)


async def test_one_that_drains_takes_nothing_new_but_finishes(tmp_path: Path) -> None:
    with engine(tmp_path, "--speed", "1") as process:
        async with attached_to(tmp_path, process.base_url) as rig:
            await rig.diary.entered(S.READY, worker_id=ID)
            worker = rig.supervisor.workers[ID]
            async with worker.client.exchange(CHAT, LONG) as exchange:
                assert await exchange.head() == 200
                os.kill(process.pid, signal.SIGTERM)
                await rig.diary.entered(S.FAILED, worker_id=ID)
                assert worker.reason == "it is not ready (GET /ready gave 503)"
                assert await exchange.read()


async def test_a_busy_one_may_miss_a_probe_but_not_three(tmp_path: Path) -> None:
    with engine(tmp_path) as process:
        async with attached_to(tmp_path, process.base_url) as rig:
            await rig.diary.entered(S.READY, worker_id=ID)
            os.kill(process.pid, signal.SIGSTOP)
            worker = cast("AttachedWorker", rig.supervisor.workers[ID])
            await until("a probe is not answered", lambda: worker.silent)
            assert worker.state is S.READY
            os.kill(process.pid, signal.SIGCONT)
            await until("a probe is answered", lambda: not worker.silent)
            assert rig.diary.states(ID) == ["loading", "ready"]
            os.kill(process.pid, signal.SIGSTOP)
            await rig.diary.entered(S.FAILED, worker_id=ID)
            os.kill(process.pid, signal.SIGCONT)
            await rig.diary.entered(S.READY, worker_id=ID, times=2)


async def test_the_key_is_sent_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    with engine(tmp_path, api_key="right") as process:
        async with attached_to(tmp_path / "1", process.base_url, api_key="right") as rig:
            await rig.diary.entered(S.READY, worker_id=ID)
        async with attached_to(tmp_path / "2", process.base_url, api_key="wrong") as rig:
            await rig.diary.entered(S.FAILED, worker_id=ID)
            assert rig.diary.reasons(ID) == [
                "it refuses the key (401): correct the variable of `key_env`"
            ]


async def test_another_model_is_told_and_never_used(tmp_path: Path) -> None:
    async with (
        plain_server(MODELS) as server,
        attached_to(tmp_path, server.url, model="code") as rig,
    ):
        await rig.diary.entered(S.FAILED, worker_id=ID)
        assert rig.diary.reasons(ID) == ["it serves chat, not code: correct `url`, or set `model`"]
        await server.asked_again("/v1/models", times=3)
        assert rig.diary.states(ID) == ["loading", "failed"]


MODELS = {"/v1/models": {"object": "list", "data": [{"id": "chat"}]}}
LOADS = {
    "loads": [
        {
            "num_running_reqs": 0,
            "num_waiting_reqs": 0,
            "num_used_tokens": 0,
            "max_total_num_tokens": 1_000,
        }
    ]
}
SILENCE = object()


@dataclass
class PlainServer:
    """GET path -> JSON, or the status of an error, or SILENCE; all else is a 404."""

    answers: dict[str, object]
    url: str = ""
    asked: Counter[str] = field(default_factory=Counter)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, http: aiohttp.web.Request) -> aiohttp.web.Response:
        self.asked[http.path] += 1
        found = self.answers.get(http.path, 404)
        if found is SILENCE:
            await self.over.wait()
            found = 503
        if isinstance(found, int):
            return aiohttp.web.json_response({"error": "refused"}, status=found)
        return aiohttp.web.json_response(found)

    async def asked_again(self, path: str, times: int) -> None:
        """Until it has been asked that often for `path` from now on."""
        enough = self.asked[path] + times
        await until(f"{path} is asked for again", lambda: self.asked[path] >= enough)


@asynccontextmanager
async def plain_server(answers: Mapping[str, object]) -> AsyncIterator[PlainServer]:
    """A server that knows nothing of SGLang, but what `answers` say."""
    server = PlainServer(dict(answers))
    app = aiohttp.web.Application()
    app.router.add_get("/{path:.*}", server.answer)
    runner = aiohttp.web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        server.over.set()
        await runner.cleanup()


async def test_a_plain_server_is_used_without_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "LOADS_LOOK_S", 0.01)
    async with plain_server(MODELS) as server, attached_to(tmp_path, server.url) as rig:
        await rig.diary.entered(S.READY, worker_id=ID)
        worker = rig.supervisor.workers[ID]
        assert not worker.client.speaks_sglang
        await server.asked_again("/v1/models", times=2)
        assert server.asked["/v1/loads"] == 1  # and not again: it said that it has none
        assert worker.loads is None
        assert str(rig.sample("inferd_kv_utilization", worker=ID)) == "nan"
        del server.answers["/v1/models"]
        await rig.diary.entered(S.FAILED, worker_id=ID)
        assert worker.reason == "GET /v1/models gave 404"


@pytest.mark.parametrize("body", [[], {"data": None}, {"data": [1]}, "text"])
async def test_a_server_of_another_kind_is_told(tmp_path: Path, body: object) -> None:
    async with (
        plain_server({"/v1/models": body}) as server,
        attached_to(tmp_path, server.url) as rig,
    ):
        await rig.diary.entered(S.FAILED, worker_id=ID)
        assert rig.diary.reasons(ID) == ["GET /v1/models gave no list of models: correct `url`"]


async def test_a_changed_address_is_taken_at_once(tmp_path: Path) -> None:
    async with plain_server(MODELS) as server, attached_to(tmp_path, "http://127.0.0.1:9") as rig:
        await rig.diary.entered(S.LOADING, worker_id=ID)
        rig.supervisor.apply([rig.pool(None, AttachedSpec("chat", server.url, None, 7))])
        await rig.diary.entered(S.READY, worker_id=ID)
        assert rig.supervisor.workers[ID].client.url == server.url


@pytest.mark.parametrize("first", [SILENCE, 503, 500, 429])
async def test_one_that_cannot_tell_its_load_yet_is_not_taken_for_a_plain_one(
    tmp_path: Path, first: object
) -> None:
    answers = {**MODELS, "/ready": {}, "/v1/loads": first}
    async with plain_server(answers) as server, attached_to(tmp_path, server.url) as rig:
        await server.asked_again("/v1/loads", times=2)
        assert rig.diary.states(ID) == ["loading"]
        server.answers["/v1/loads"] = LOADS
        await rig.diary.entered(S.READY, worker_id=ID)
        assert rig.supervisor.workers[ID].client.speaks_sglang


async def test_a_gate_that_lacks_a_readiness_page_at_first_is_asked_again(tmp_path: Path) -> None:
    async with plain_server({}) as server, attached_to(tmp_path, server.url) as rig:
        await server.asked_again("/v1/models", times=1)
        server.answers.update(MODELS, **{"/ready": 503, "/v1/loads": LOADS})
        await server.asked_again("/ready", times=2)
        assert rig.diary.states(ID) == ["loading"]
        server.answers["/ready"] = {}
        await rig.diary.entered(S.READY, worker_id=ID)


async def test_one_that_is_healthy_but_silent_is_left_and_must_prove_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "DISTRUST_S", 0.5)
    with engine(tmp_path) as process:
        process.wait_ready()
        async with running(tmp_path) as rig, connected(process) as direct:
            limits = Watchdog(silence_s=1.0)
            spec = AttachedSpec("chat", process.base_url, None, 7, watchdog=limits)
            rig.supervisor.apply([rig.pool(None, spec)])
            await rig.diary.entered(S.READY, worker_id=ID)
            client = rig.supervisor.workers[ID].client
            async with client.exchange(CHAT, LONG) as exchange:
                assert await exchange.head() == 200
                await direct.fault("frozen")
                with pytest.raises(WorkerUnreachable):
                    await read_on(exchange)
            await rig.diary.entered(S.FAILED, worker_id=ID)
            assert rig.diary.reasons(ID)[0].startswith("it hangs: 1 answers owed")
            await direct.fault("clear")
            await rig.diary.entered(S.READY, worker_id=ID, times=2)
            assert process.exit_code is None
            assert (await direct.stats())["counts"]["GET /health"] >= 1


async def test_a_busy_one_that_answers_no_probe_is_not_lost_by_that(tmp_path: Path) -> None:
    with engine(tmp_path, "--fault", '{"kind": "block_probes"}', "--speed", "1") as process:
        process.wait_ready()
        async with attached_to(tmp_path, process.base_url) as rig:
            await rig.diary.entered(S.READY, worker_id=ID)
            worker = cast("AttachedWorker", rig.supervisor.workers[ID])
            prompt = {"role": "user", "content": "word " * 3_000}
            body = orjson.dumps({"model": "chat", "messages": [prompt], "max_tokens": 2})
            async with worker.client.exchange(CHAT, body) as exchange:
                await until(
                    "probes are missed", lambda: worker.silent >= attached.SILENT_PROBES_MAX
                )
                assert await exchange.head() == 200
                assert await exchange.read_all()
            assert rig.diary.reasons(ID) == []
