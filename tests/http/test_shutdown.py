"""The end: what runs may finish, what does not finish is told, what comes is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from inferd.clock import monotonic
from inferd.errors import ConfigError
from inferd.inference import Outcome
from inferd.storage.database import Database
from inferd.storage.usage import UsageFilter, UsageRow, rows
from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import Gateway, attached, gateway, until
from tests.http.raw_connection import Answer, ask, chat, client_of, holding, raw_connection

pytestmark = pytest.mark.real_time


async def ended(inferd: Gateway, within_s: float) -> float:
    """Until the process would be over; how long that took."""
    assert inferd.running is not None
    began = monotonic()
    async with asyncio.timeout(within_s):
        await asyncio.wait([inferd.running])
    return monotonic() - began


async def ledger(inferd: Gateway) -> list[UsageRow]:
    """The rows of a gateway that has stopped, oldest first."""
    path = inferd.app.node.loaded.resolve("state") / "inferd.db"

    def ignore(_: Any) -> None:
        """No metrics here."""

    async with Database.open(path, ignore) as db:
        return list(reversed(await rows(db, UsageFilter())))


def assert_cut(answer: Answer) -> None:
    assert answer.complete
    assert b"[DONE]" not in answer.body
    error = answer.told.error
    assert error is not None
    assert "shutting down" in error["message"]
    assert error["usage"]["completion_tokens"] > 0


async def refused(inferd: Gateway) -> None:
    """Until the public listener takes no new connection."""
    async with asyncio.timeout(1.0):
        while True:
            try:
                async with raw_connection(inferd.public):
                    await asyncio.sleep(0.01)
            except ConnectionRefusedError:
                return


async def test_a_stream_ends_well_within_the_grace_and_nothing_new_begins(
    tmp_path: Path, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, paced) as inferd:
        async with client_of(inferd) as client, client_of(inferd) as idle:
            idle.request("GET", "/v1/models")
            assert (await idle.answer()).status == 200
            client.chat(holding(max_tokens=80))
            head = await client.head()
            inferd.app.stop()
            async with raw_connection(inferd.admin) as probe:
                probe.request("GET", "/readyz")
                answer = await probe.answer()
                assert (answer.status, answer.json["status"]) == (503, "stopping")
            await refused(inferd)
            assert await idle.ended()
            with pytest.raises(ConfigError, match="stopping"):
                await inferd.reload(attached(paced))
            stream = await client.rest(*head)
        await ended(inferd, 2.0)
        (row,) = await ledger(inferd)
        await inferd.engine.until(running=0)
    assert stream.told.done
    assert stream.told.finish == "length"
    assert (row.outcome, row.completion_tokens, row.estimated) == (Outcome.COMPLETED, 80, False)


async def test_what_outlives_the_grace_is_told_with_its_usage(
    tmp_path: Path, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, paced, server={"shutdown_grace_s": 0.5}) as inferd:
        async with client_of(inferd) as client:
            client.chat(holding())
            head = await client.head()
            inferd.app.stop()
            answer = await client.rest(*head)
        assert await ended(inferd, 3.0) > 0.0
        (row,) = await ledger(inferd)
        await inferd.engine.until(running=0)
    assert_cut(answer)
    assert row.outcome == Outcome.FAILED
    assert row.completion_tokens > 20


async def test_a_second_signal_does_not_wait_whatever_its_requests_are_at(
    tmp_path: Path, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, paced, slots=3, server={"shutdown_grace_s": 60.0}) as inferd:
        await inferd.engine.fault("slow_first", seconds=60, match="Never")
        async with client_of(inferd) as streaming, asyncio.TaskGroup() as clients:
            streaming.chat(holding())
            head = await streaming.head()
            others = [
                clients.create_task(ask(inferd, body))
                for body in (
                    holding("Whole", stream=False),
                    chat("Never", stream=True),
                    chat("In the queue"),
                )
            ]
            await until(lambda: inferd.held().get("waiting for chat@1") == 1)
            await streaming.chunks(5)
            inferd.app.stop()
            await asyncio.sleep(0.2)
            assert inferd.app.node.dispatch.in_flight == 4
            began = monotonic()
            inferd.app.stop()
            stream = await streaming.rest(*head)
        await ended(inferd, 3.0)
        took_s = monotonic() - began
        found = await ledger(inferd)
        await inferd.engine.until(running=0)
    assert_cut(stream)
    assert took_s < 2.0
    for task in others:
        assert task.result().status == 503
        assert "shutting down" in task.result().error["message"]
    assert {row.outcome for row in found} == {Outcome.FAILED, Outcome.REFUSED}
    assert sum(row.completion_tokens > 0 for row in found) == 1


async def test_a_client_that_does_not_read_does_not_keep_inferd_alive(
    tmp_path: Path, fast: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferd.app.LAST_WORDS_S", 0.5)
    body = chat(stream=True, max_tokens=2_000, ignore_eos=True, logprobs=True, top_logprobs=20)
    server = {"shutdown_grace_s": 0.3, "stall_s": 60.0}
    async with gateway(tmp_path, fast, server=server) as inferd:
        async with client_of(inferd, lazy=True) as sleeper:
            sleeper.chat(body)
            await inferd.engine.until(running=1)
            await asyncio.sleep(0.3)
            inferd.app.stop()
            assert await ended(inferd, 4.0) < 2.5
        (row,) = await ledger(inferd)
        await inferd.engine.until(running=0)
    assert row.outcome in {Outcome.FAILED, Outcome.CLIENT_LEFT}


async def test_stopping_without_requests_is_quick_and_closes_everything(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with (
        gateway(tmp_path, fast) as inferd,
        client_of(inferd) as idle,
        raw_connection(inferd.admin) as admin,
    ):
        for client in (idle, admin):
            client.request("GET", "/healthz")
            assert (await client.answer()).status == 200
        inferd.app.stop()
        assert await ended(inferd, 3.0) < 2.0
        assert await idle.ended()
        assert await admin.ended()


async def test_a_service_that_dies_takes_everything_along_and_says_so_in_what_runs(
    tmp_path: Path, paced: EngineProcess
) -> None:
    began = asyncio.Event()

    async def dies() -> None:
        raise RuntimeError("boom")

    async def read(inferd: Gateway) -> Answer:
        async with client_of(inferd) as client:
            client.chat(holding())
            head = await client.head()
            began.set()
            return await client.rest(*head)

    async def serve_until_it_dies(readers: asyncio.TaskGroup) -> None:
        async with gateway(tmp_path, paced) as inferd:
            answers.append(readers.create_task(read(inferd)))
            await began.wait()
            services = inferd.app.node.supervisor._group
            assert services is not None
            services.create_task(dies())
            await asyncio.Event().wait()

    answers: list[asyncio.Task[Answer]] = []
    async with asyncio.TaskGroup() as readers:
        with pytest.raises(BaseExceptionGroup) as caught:
            await serve_until_it_dies(readers)
    assert caught.group_contains(RuntimeError, match="boom")
    told = answers[0].result().told
    assert told.error is not None
    assert not told.done
