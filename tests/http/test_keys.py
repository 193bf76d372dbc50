"""Who may come in: keys that are missing, wrong, expired or revoked, and what a key may use."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest

from inferd.clock import utc_now_us
from inferd.config.limits import Limits
from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import Gateway, gateway
from tests.http.raw_connection import Answer, ask, chat, holding, raw_connection
from tests.http.test_refusals import assert_error

pytestmark = pytest.mark.real_time

OTHER_TEAM = '[[teams]]\nname = "ads"\nmodels = ["other"]\n'
OTHER_MODEL = """
[[models]]
name = "other"
default_version = "1"
context_tokens_max = 100
output_tokens_max = 10
[[models.versions]]
version = "1"
attached = [{ url = "http://127.0.0.1:9" }]
"""


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def assert_unknown(answer: Answer) -> None:
    """One answer for every key that is none, so that nothing can be learnt from it."""
    error = assert_error(answer, 401, "invalid_api_key")
    assert error["param"] is None
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "x-ratelimit-limit-tokens" not in answer.headers


async def refusal_of(inferd: Gateway, headers: dict[str, str]) -> Answer:
    async with raw_connection(inferd.public, headers) as client:
        client.chat(chat())
        return await client.answer()


async def test_no_key_a_wrong_one_and_one_that_is_none(tmp_path: Path, fast: EngineProcess) -> None:
    async with gateway(tmp_path, fast, team={"tokens_per_s": 1, "burst_tokens": 9_999}) as inferd:
        for headers in ({}, {"authorization": "Basic abc"}, {"authorization": "Bearer "}):
            assert_error(await refusal_of(inferd, headers), 401, None)
        secret = "sk-inferd-" + "Q" * 43
        Gateway.secrets.add(secret)
        answers = [
            await refusal_of(inferd, bearer(key))
            for key in (
                secret,
                inferd.key[:-1],
                inferd.key + "x",
                "x",
                "x" * 5_000,
                inferd.admin_key,
            )
        ]
        for answer in answers:
            assert_unknown(answer)
        assert "sk-infer********QQQQ" in answers[0].error["message"]
        async with openai.AsyncOpenAI(base_url=f"{inferd.base_url}/v1", api_key=secret) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        assert await inferd.rows() == []


async def test_an_expired_key_is_refused_from_its_second_on(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        _, key = await inferd.app.node.keys.create("search", "soon", None, utc_now_us() + 400_000)
        Gateway.secrets.add(key)
        async with raw_connection(inferd.public, bearer(key)) as client:
            client.chat(chat(max_tokens=1))
            assert (await client.answer()).status == 200
            await asyncio.sleep(0.45)
            client.chat(chat(max_tokens=1))
            assert_unknown(await client.answer())


async def test_a_revoked_key_is_refused_on_an_open_connection_and_its_stream_may_end(
    tmp_path: Path, paced: EngineProcess
) -> None:
    async with gateway(tmp_path, paced) as inferd:
        key = await inferd.new_key(name="stolen")
        (found,) = [
            one
            for one in (await inferd.ask_admin("GET", "/admin/v1/keys"))["data"]
            if one["name"] == "stolen"
        ]
        async with (
            raw_connection(inferd.public, bearer(key)) as idle,
            raw_connection(inferd.public, bearer(key)) as busy,
        ):
            idle.chat(chat(max_tokens=1))
            assert (await idle.answer()).status == 200
            busy.chat(holding(max_tokens=60))
            status, headers = await busy.head()
            await inferd.ask_admin("POST", f"/admin/v1/keys/{found['id']}/revoke")
            idle.chat(chat(max_tokens=1))
            assert_unknown(await idle.answer())
            assert (await busy.rest(status, headers)).told.done
            busy.request("GET", "/v1/models")
            assert_unknown(await busy.answer())
        assert (await ask(inferd, chat(max_tokens=1))).status == 200, "the other key works on"


async def test_a_key_and_a_team_use_what_they_may_and_see_nothing_else(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast, more=OTHER_MODEL + OTHER_TEAM) as inferd:
        narrow = await inferd.new_key(models=["other"])
        foreign = await inferd.new_key(team="ads")
        listed = {}
        for name, key in (("wide", inferd.key), ("narrow", narrow), ("foreign", foreign)):
            async with raw_connection(inferd.public, bearer(key)) as client:
                client.request("GET", "/v1/models")
                listed[name] = [one["id"] for one in (await client.answer()).json["data"]]
                if name == "wide":
                    continue
                for model in ("chat", "gpt-test", "chat@1"):
                    client.chat(chat(model=model))
                    error = assert_error(await client.answer(), 403, "model_not_allowed")
                    assert model in error["message"]
                client.request("GET", "/v1/models/chat")
                assert_error(await client.answer(), 403, "model_not_allowed")
    assert listed == {"wide": ["chat", "other"], "narrow": ["other"], "foreign": ["other"]}


async def test_keys_of_one_listener_open_nothing_on_the_other(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd:
        for path in ("/admin/v1/status", "/admin/v1/keys", "/metrics"):
            for headers, code in (({}, None), (bearer(inferd.key), "invalid_api_key")):
                async with raw_connection(inferd.admin, headers) as client:
                    client.request("GET", path)
                    assert_error(await client.answer(), 401, code)
        async with raw_connection(inferd.admin, bearer(inferd.admin_key)) as client:
            client.chat(chat())
            assert_error(await client.answer(), 404, "unknown_url")


async def test_a_key_is_bounded_by_its_own_limits_beside_its_team(
    tmp_path: Path, fast: EngineProcess
) -> None:
    """Its requests are charged to the team too; other keys of the team are not bounded by it."""
    team = {"tokens_per_s": 1, "burst_tokens": 9_999}
    limits = Limits(tokens_per_s=1, burst_tokens=8_000, requests_per_s=0.01, burst_requests=1)
    async with gateway(tmp_path, fast, team=team) as inferd:
        keys = inferd.app.node.keys
        record, key = await keys.create("search", "small", None, None, limits)
        Gateway.secrets.add(key)
        first = await refusal_of(inferd, bearer(key))
        second = await refusal_of(inferd, bearer(key))
        other = await ask(inferd, chat())
        status = await inferd.ask_admin("GET", "/admin/v1/status")
    assert first.status == 200
    assert first.headers["x-ratelimit-limit-tokens"] == "8000"
    assert_error(second, 429, "rate_limit_exceeded", "requests")
    assert record.id in second.body.decode()
    assert other.status == 200
    assert other.headers["x-ratelimit-limit-tokens"] == "9999"
    assert int(other.headers["x-ratelimit-remaining-tokens"]) < 9_999
    assert status["teams"][0]["keys"][record.id]["requests_left"] == 0
