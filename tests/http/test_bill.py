"""The bill over real sockets: money, reasons, the balance with the engine, audit, privacy."""

from __future__ import annotations

import asyncio
import json
import logging
from fractions import Fraction
from pathlib import Path
from typing import Any

import openai
import pytest

from inferd.inference import Outcome
from inferd.logs import JsonFormatter
from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import TEAM, gateway, until
from tests.http.raw_connection import ask, chat, client_of, holding
from tests.http.test_batches import encoded, ended, line, submitted

pytestmark = pytest.mark.real_time

PRICES = {"input": 0.15, "cached_input": 0.075, "output": 0.6, "batch_output": 0.3}
SENTINEL = "zaphod-beeblebrox-4711"


def files_that_tell(folder: Path, secret: str) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if secret.encode() in path.read_bytes()]


def owed(row: dict[str, Any]) -> Fraction:
    """The bill of a row, by the price list above and nothing of inferd's."""
    price = {name: Fraction(str(value)) for name, value in PRICES.items()}
    output = price["batch_output"] if row["priority"] == "batch" else price["output"]
    computed = int(row["prompt_tokens"]) - int(row["cached_tokens"])
    parts = computed * price["input"] + int(row["cached_tokens"]) * price["cached_input"]
    return (parts + int(row["completion_tokens"]) * output) / 10**6


async def test_money_reasons_and_the_balance_agree(fast: EngineProcess, tmp_path: Path) -> None:
    async with gateway(tmp_path, fast, version={"prices": PRICES}) as inferd:
        bodies = [
            chat("One", max_tokens=9),
            chat("One", max_tokens=9, stream=True),
            chat("Five", priority="batch", max_tokens=5),
            chat("Two", n=2, max_tokens=4),
        ]
        for body in bodies:
            async with inferd.post(body) as answer:
                assert answer.status == 200
                await answer.read()
        await inferd.rows()
        usage = await inferd.ask_admin("GET", "/admin/v1/usage?by=team,priority")
        lives = [
            await inferd.ask_admin("GET", f"/admin/v1/requests/{row.request_id}")
            for row in await inferd.rows()
        ]
        for life in lives:
            assert Fraction(life["cost"]) == owed(life)
            same = await inferd.ask_admin("GET", f"/admin/v1/requests/{life['response_id']}")
            assert same == life
        assert Fraction(usage["total"]["cost"]) == sum(map(owed, lives))
        assert [group["priority"] for group in usage["groups"]] == ["batch", "interactive"]

        balance = await inferd.ask_admin("GET", "/admin/v1/reconcile")
        (worker,) = balance["workers"]
        assert balance["balanced"], worker
        assert worker["engine"]["completion_tokens"] == sum(r["completion_tokens"] for r in lives)
        assert balance["estimated"] == []


async def test_a_batch_says_what_it_costs_and_cut_lines_balance(
    fast: EngineProcess, tmp_path: Path
) -> None:
    more = '[files]\nstore = "files"\n[batches]\ncancel_grace_s = 0.05\n'
    async with gateway(tmp_path, fast, version={"prices": PRICES}, more=more, slots=2) as inferd:
        async with inferd.openai() as client:
            short = [line(number, "[tokens 5]") for number in range(6)]
            slow = [line(number, "[tokens 400]") for number in range(6, 30)]
            created = await submitted(client, encoded(*short, *slow))
            counts = None
            while counts is None or counts.completed < 6:
                await asyncio.sleep(0.02)
                counts = (await client.batches.retrieve(created.id)).request_counts
            await client.batches.cancel(created.id)
            batch = await ended(client, created.id)
        rows = await inferd.rows()
        lives = [
            await inferd.ask_admin("GET", f"/admin/v1/requests/{row.request_id}") for row in rows
        ]
        usage = await inferd.ask_admin("GET", "/admin/v1/usage?by=priority")
        balance = await inferd.ask_admin("GET", "/admin/v1/reconcile")
        told = await inferd.metrics()
    assert len(lives) == batch.request_counts.completed
    assert batch.request_counts.failed
    shown = batch.model_extra["inferd"]
    assert shown["currency"] == "USD"
    assert Fraction(shown["cost"]) == sum(map(owed, lives)) > 0
    assert Fraction(usage["total"]["cost"]) == Fraction(shown["cost"])
    assert [group["priority"] for group in usage["groups"]] == ["batch"]
    assert balance["balanced"], balance["workers"]
    assert 'inferd_unbilled_tokens_total{reason="cut"}' in told


async def test_a_refused_request_has_a_life_too(fast: EngineProcess, tmp_path: Path) -> None:
    budget = "[teams.budget]\ntokens_per_month = 1\n"
    async with gateway(tmp_path, fast, more=budget) as inferd:
        async with inferd.post(chat("One", max_tokens=3)) as answer:
            assert answer.status == 200
            await answer.read()
        await inferd.rows()
        async with inferd.openai(max_retries=2) as client:  # it does not try again
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(
                    model="chat", messages=[{"role": "user", "content": "Two"}]
                )
        assert refused.value.code == "insufficient_quota"
        assert refused.value.type == "insufficient_quota"
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert len(await inferd.rows()) == 2
        request_id = refused.value.request_id
        life = await inferd.ask_admin("GET", f"/admin/v1/requests/{request_id}")
        assert (life["outcome"], life["error_code"]) == ("refused", "insufficient_quota")

        async with inferd.post({"model": "chat", "messages": SENTINEL}) as answer:
            assert answer.status == 400
            request_id = answer.headers["x-request-id"]
        life = await inferd.ask_admin("GET", f"/admin/v1/requests/{request_id}")
        assert (life["object"], life["status"], life["team"]) == ("refusal", 400, TEAM)
        assert SENTINEL not in str(life)
        await inferd.ask_admin("GET", "/admin/v1/requests/req_none", status=404)


async def test_actions_are_written_down_with_who_did_them(
    fast: EngineProcess, tmp_path: Path
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        secret = await inferd.new_key(name="laptop")
        await inferd.ask_admin("POST", "/admin/v1/keys", {"team": "nobody"}, status=400)
        await inferd.ask_admin("POST", "/admin/v1/reload")
        await inferd.app.node.db.flush()
        done = (await inferd.ask_admin("GET", "/admin/v1/audit"))["data"]
        told = [(one["action"].split()[-1].rpartition("/")[2], one["status"]) for one in done]
        assert told == [("reload", 200), ("keys", 400), ("keys", 200), ("keys", 200)]
        assert f"of team {TEAM}" in done[2]["target"]
        assert secret not in json.dumps(done)


async def test_what_is_asked_and_answered_is_nowhere(
    fast: EngineProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A prompt, its answer and a wrong body, through every way a request can end."""
    caplog.set_level(logging.DEBUG)
    say = f"[say {SENTINEL}]"
    async with gateway(tmp_path, fast) as inferd:
        for body in (
            chat(say),
            chat(say, stream=True),
            chat(say, max_tokens=10**9),
            chat(say, tools=SENTINEL),
            chat(say, user=SENTINEL),
            chat(say, metadata={"about": SENTINEL}),
            chat(say, response_format={"type": SENTINEL}),
        ):
            async with inferd.post(body) as answer:
                await answer.read()
        await inferd.engine.fault("cut", after=2, times=1)
        await ask(inferd, chat(say, stream=True))
        await inferd.engine.fault("error", status=500, message=SENTINEL, times=2)
        await ask(inferd, chat(say))
        async with client_of(inferd) as connection:
            connection.chat(holding(say))
            await connection.head()
            connection.reset()
        await inferd.rows()
        exposition = await inferd.metrics()
    formatter = JsonFormatter()
    for record in caplog.records:
        assert SENTINEL not in f"{record.getMessage()} {formatter.format(record)}", record.name
    assert SENTINEL not in exposition
    assert files_that_tell(tmp_path, SENTINEL) == []


async def test_the_balance_waits_for_the_bill_of_who_has_just_left(
    tmp_path: Path, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, paced) as inferd:
        await inferd.engine.fault("ignore_abort")  # the engine's last word takes its time
        async with client_of(inferd) as client:
            client.chat(holding())
            await client.head()
            await client.chunks(3)
            client.leave()
        await until(lambda: not inferd.app.node.dispatch.in_flight)
        balance = await inferd.ask_admin("GET", "/admin/v1/reconcile")
        row = await inferd.row()
    assert row.outcome == Outcome.CLIENT_LEFT
    assert [told["request_id"] for told in balance["estimated"]] == [row.request_id]
