"""The three accounts of the same tokens agree: the engines' counters, the ledger, the metrics."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import pytest

from inferd.inference import SYSTEM_TEAM, Outcome
from inferd.storage.usage import sums
from tests.fakes.engines import EngineProcess, RunningEngine
from tests.fakes.gateway import Gateway, gateway
from tests.http.raw_connection import CHAT_PATH, ask, chat, client_of, holding, raw_connection
from tests.http.test_keys import bearer

pytestmark = pytest.mark.real_time

SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
CONVERSATION = [
    {"role": "user", "content": "What is a river, and why does it bend so often on its way?"},
    {"role": "assistant", "content": "Water that goes downhill."},
    {"role": "user", "content": "Why?"},
]
BATCH = chat("Five", priority="batch", max_tokens=5)
KINDS: list[dict[str, Any]] = [
    chat("One", max_tokens=9),
    chat("Two", max_tokens=9, stream=True),
    chat("Three", max_tokens=9, stream=True, stream_options={"include_usage": True}),
    chat("Four [tokens 7]"),
    chat(messages=CONVERSATION, stream=True, max_tokens=11),
    BATCH,
    chat("Six", response_format={"type": "json_object"}),
    chat("Seven", stop=["the", "a"], stream=True),
    chat("Eight and thai", stream=True, logprobs=True, max_tokens=20),
    holding("Nine"),  # its client leaves
]


def samples(exposition: str) -> dict[str, float]:
    """Every sample of an exposition by its name with labels."""
    return {
        f"{name}{{{labels}}}": float(value) for name, labels, value in SAMPLE.findall(exposition)
    }


def total(exposition: str, name: str, *labels: str) -> int:
    found = samples(exposition).items()
    return int(
        sum(
            value
            for key, value in found
            if key.startswith(f"{name}{{") and all(one in key for one in labels)
        )
    )


async def counters(engines: list[RunningEngine]) -> tuple[int, int, int]:
    told = [await engine.stats() for engine in engines]
    names = ("prompt_tokens", "cached_tokens", "completion_tokens")
    prompt, cached, completion = (int(sum(one[name] for one in told)) for name in names)
    return prompt, cached, completion


async def use(inferd: Gateway, body: dict[str, Any]) -> None:
    if body["messages"][0]["content"] != "Nine":
        assert (await ask(inferd, body)).status == 200
        return
    async with client_of(inferd) as client:
        client.chat(body)
        await client.head()
        await client.chunks(5)


async def test_fifty_mixed_requests_are_the_same_tokens_in_every_account(
    tmp_path: Path, paced: EngineProcess, fast: EngineProcess, rng: random.Random
) -> None:
    """Batch requests come when no other waits: work that is given up for others is nobody's."""
    bodies = [body for body in KINDS if body is not BATCH] * 5
    rng.shuffle(bodies)
    async with gateway(tmp_path, paced, fast, slots=4) as inferd:
        before = await counters(inferd.engines)
        async with asyncio.TaskGroup() as clients:
            for body in bodies:
                clients.create_task(use(inferd, body))
        for _ in range(5):
            await use(inferd, BATCH)
        rows = await inferd.rows()
        after = await counters(inferd.engines)
        exposition = await inferd.metrics()
        (summed,) = [
            one
            for one in await sums(inferd.app.node.db, by=("team",))
            if one.group != (SYSTEM_TEAM,)
        ]
    counted = tuple(new - old for new, old in zip(after, before, strict=True))
    assert counted == (summed.prompt_tokens, summed.cached_tokens, summed.completion_tokens)
    cached = total(exposition, "inferd_prompt_tokens_total", 'cached="true"')
    computed = total(exposition, "inferd_prompt_tokens_total", 'cached="false"')
    written = total(exposition, "inferd_completion_tokens_total")
    assert counted == (cached + computed, cached, written)
    assert counted[1] > 0
    assert (summed.requests, summed.estimated_requests, len(rows)) == (50, 0, 50)
    assert total(exposition, "inferd_requests_total") == 50
    assert total(exposition, "inferd_requests_total", 'outcome="client_left"') == 5
    assert {row.outcome for row in rows} == {Outcome.COMPLETED, Outcome.CLIENT_LEFT}
    assert {row.worker for row in rows} == {"chat-1-a1", "chat-1-a2"}
    assert {row.priority for row in rows} == {"interactive", "batch"}


async def test_what_clients_write_makes_no_series(
    tmp_path: Path, fast: EngineProcess, rng: random.Random
) -> None:
    async with gateway(tmp_path, fast) as inferd:

        async def probe(number: int) -> None:
            word = f"{number}-{rng.getrandbits(64):x}"
            async with client_of(inferd) as client:
                client.chat(chat(model=word, user=word, metadata={word: word}))
                assert (await client.answer()).status == 404
                client.request("GET", f"/v1/{word}")
                assert (await client.answer()).status == 404
                client.request("GET", f"/v1/models/{word}")
                assert (await client.answer()).status == 404
                client.request("GET", CHAT_PATH, headers={"x-client-request-id": word})
                assert (await client.answer()).status == 405
            async with raw_connection(inferd.public, bearer(word)) as stranger:
                stranger.chat(chat())
                assert (await stranger.answer()).status == 401

        await probe(0)
        await inferd.metrics()
        assert (await ask(inferd, chat(max_tokens=1))).status == 200
        before = set(samples(await inferd.metrics()))
        for start in range(1, 301, 50):
            async with asyncio.TaskGroup() as strangers:
                for number in range(start, start + 50):
                    strangers.create_task(probe(number))
        assert (await ask(inferd, chat(max_tokens=1))).status == 200
        after = set(samples(await inferd.metrics()))
    assert after == before


async def test_readiness_health_and_metrics_on_both_listeners(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        pools = {"pools": {"chat@1": "ready"}}  # names of models are for admins
        for address, more in ((inferd.public, {}), (inferd.admin, pools)):
            async with raw_connection(address) as client:
                for path, status in (
                    ("/healthz", {"status": "ok"}),
                    ("/readyz", {"status": "ready", **more}),
                ):
                    client.request("GET", path)
                    answer = await client.answer()
                    assert (answer.status, answer.json) == (200, status)
        async with raw_connection(inferd.admin, bearer(inferd.admin_key)) as client:
            client.request("GET", "/metrics")
            answer = await client.answer()
        assert answer.headers["content-type"].startswith("text/plain; version=")
        assert (
            samples(answer.body.decode())['inferd_worker_state{state="ready",worker="chat-1-a1"}']
            == 1
        )


async def test_not_ready_without_a_worker_but_healthy(tmp_path: Path) -> None:
    nobody = [{"url": "http://127.0.0.1:9"}]
    async with gateway(tmp_path, workers=nobody, ready=0) as inferd:
        for address in (inferd.public, inferd.admin):
            async with raw_connection(address) as client:
                client.request("GET", "/healthz")
                assert (await client.answer()).status == 200
                client.request("GET", "/readyz")
                answer = await client.answer()
                assert answer.status == 503
                assert answer.json["status"] == "no worker is ready"
