from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from starlette.routing import Router

from inferd import clock
from inferd.api.admin import BODY_BYTES_MAX, AdminApi
from inferd.api.admin_auth import AdminAuth
from inferd.api.key_admin import KeyAdmin
from inferd.api.middleware import Envelope
from inferd.config.schema import Config, Model, Team
from inferd.config.version import Version
from inferd.errors import InvalidKey
from inferd.quota.keys import KeyIndex
from tests.fakes.inline_database import InlineDatabase
from tests.fakes.running_database import running

ADMIN_KEY = "sk-inferd-admin-" + "a" * 43


def model(name: str, *aliases: str) -> Model:
    return Model(
        name=name,
        aliases=aliases,
        default_version="1",
        context_tokens_max=4_096,
        output_tokens_max=512,
        versions=(Version(version="1", weights="w"),),
    )


CONFIG = Config(
    models=(model("small", "fast"), model("large")),
    teams=(Team(name="search", weight=2, tokens_per_s=100), Team(name="ads", models=("fast",))),
)


@asynccontextmanager
async def admin_api() -> AsyncIterator[tuple[httpx2.AsyncClient, KeyIndex]]:
    """A client of the admin listener, and the keys behind it."""
    async with running(InlineDatabase.open()) as db:
        keys = await KeyIndex.load(db, [team.name for team in CONFIG.teams])
        routes = AdminApi(KeyAdmin(keys, lambda: CONFIG)).routes()
        app = AdminAuth(Router(routes, redirect_slashes=False), ADMIN_KEY)
        envelope = Envelope(app, count=lambda *_: None, operator=True)
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(envelope),
            base_url="http://admin/admin/v1",
            headers={"authorization": f"Bearer {ADMIN_KEY}"},
        ) as client:
            yield client, keys


def accepted(keys: KeyIndex, secret: str) -> bool:
    try:
        keys.authenticate(secret, clock.utc_now_us())
    except InvalidKey:
        return False
    return True


async def test_teams_are_those_of_the_config() -> None:
    async with admin_api() as (client, keys):
        await keys.create("ads", "", None, None)
        answer = (await client.get("/teams")).json()
        assert answer["object"] == "list"
        search, ads = answer["data"]
        assert (search["name"], search["weight"], search["tokens_per_s"]) == ("search", 2, 100)
        assert (search["models"], search["active_keys"]) == (None, 0)
        assert (ads["models"], ads["active_keys"]) == (["fast"], 1)


async def test_one_team_comes_with_its_keys() -> None:
    async with admin_api() as (client, keys):
        record, _ = await keys.create("ads", "ci", None, None)
        await keys.create("search", "", None, None)
        team = (await client.get("/teams/ads")).json()
        assert [key["id"] for key in team["keys"]] == [record.id]


async def test_a_key_from_its_making_to_its_end() -> None:
    async with admin_api() as (client, keys):
        body = {"team": "search", "name": "ci", "expires_s": 60, "models": ["fast"]}
        made = (await client.post("/keys", json=body)).json()
        secret = made.pop("secret")
        assert accepted(keys, secret)
        assert made["models"] == ["small"], "an alias stands for what it names when the key is made"
        assert made["state"] == "active"
        assert 59 <= made["expires_at"] - made["created_at"] <= 61
        assert (await client.get("/keys")).json()["data"] == [made]

        rotated = (await client.post(f"/keys/{made['id']}/rotate", json={"grace_s": 5})).json()
        assert rotated["id"] == made["id"]
        assert rotated["previous_secret_until"] is not None
        assert accepted(keys, secret)
        assert accepted(keys, rotated["secret"])

        revoked = (await client.post(f"/keys/{made['id']}/revoke")).json()
        assert revoked["state"] == "revoked"
        assert "secret" not in revoked
        assert not accepted(keys, secret)
        assert not accepted(keys, rotated["secret"])


async def test_a_list_holds_no_secret_and_no_hash() -> None:
    async with admin_api() as (client, keys):
        record, secret = await keys.create("ads", "", None, None)
        text = (await client.get("/keys")).text + (await client.get("/teams/ads")).text
        assert secret[18:] not in text
        assert record.hash.hex() not in text
        assert "hash" not in text


async def test_keys_of_one_team() -> None:
    async with admin_api() as (client, keys):
        record, _ = await keys.create("ads", "", None, None)
        await keys.create("search", "", None, None)
        answer = (await client.get("/keys", params={"team": "ads"})).json()
        assert [key["id"] for key in answer["data"]] == [record.id]


async def test_verifying_a_secret() -> None:
    async with admin_api() as (client, keys):
        record, secret = await keys.create("ads", "", None, None)
        answer = (await client.post("/keys/verify", json={"secret": secret})).json()
        assert answer["valid"]
        assert answer["key"]["id"] == record.id
        wrong = (await client.post("/keys/verify", json={"secret": secret + "x"})).json()
        assert wrong == {"object": "key.verification", "valid": False, "key": None}


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "team", "Missing required parameter: 'team'."),
        ({"team": 1}, "team", "Invalid type for 'team'"),
        ({"team": "adds"}, "team", "Teams: ads, search."),
        ({"team": "ads", "expires": 1}, "expires", "Unknown parameter: 'expires'."),
        ({"team": "ads", "expires_s": 0}, "expires_s", "below minimum"),
        ({"team": "ads", "models": []}, "models", "empty array"),
        ({"team": "ads", "models": [1]}, "models[0]", "Invalid type"),
        ({"team": "ads", "models": ["large"]}, "models", "no model 'large'. Models: small."),
        ({"team": "search", "models": ["huge"]}, "models", "Models: large, small."),
        ({"team": "ads", "name": "a\u0000b"}, "name", "printable"),
    ],
)
async def test_a_wrong_field_is_named(body: dict[str, Any], param: str, message: str) -> None:
    async with admin_api() as (client, keys):
        response = await client.post("/keys", json=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == param
        assert message in error["message"]
        assert keys.list() == []


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/teams/nobody", 404, None),
        ("GET", "/keys?team=nobody", 404, None),
        ("POST", "/keys/key_x/revoke", 404, None),
        ("POST", "/keys/key_x/rotate", 404, None),
        ("GET", "/nothing", 404, "unknown_url"),
        ("DELETE", "/keys", 405, "method_not_supported"),
    ],
)
async def test_what_is_not_there(method: str, path: str, status: int, code: str | None) -> None:
    async with admin_api() as (client, _):
        response = await client.request(method, path)
        assert response.status_code == status
        assert response.json()["error"]["code"] == code
        assert response.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[]", 400), (b'{"team": "' + b"x" * BODY_BYTES_MAX + b'"}', 413)],
)
async def test_a_body_that_is_no_small_object(body: bytes, status: int) -> None:
    async with admin_api() as (client, _):
        headers = {"content-type": "application/json"}
        response = await client.post("/keys", content=body, headers=headers)
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_revoked_key_cannot_be_rotated_and_is_not_retried() -> None:
    async with admin_api() as (client, keys):
        record, _ = await keys.create("ads", "", None, None)
        await client.post(f"/keys/{record.id}/revoke")
        response = await client.post(f"/keys/{record.id}/rotate")
        assert response.status_code == 409
        assert response.headers["x-should-retry"] == "false"


async def test_a_teams_key_is_worth_nothing_here() -> None:
    async with admin_api() as (client, keys):
        _, secret = await keys.create("ads", "", None, None)
        response = await client.get("/keys", headers={"authorization": f"Bearer {secret}"})
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert secret[18:] not in response.text


async def test_a_key_with_limits_of_its_own_shows_and_keeps_them() -> None:
    limits = {"tokens_per_s": 50, "burst_tokens": 5_000}
    async with admin_api() as (client, keys):
        made = (await client.post("/keys", json={"team": "search", "limits": limits})).json()
        assert made["limits"] == limits
        assert keys.get(made["id"]).burst_tokens == 5_000
        again = (await client.post(f"/keys/{made['id']}/rotate")).json()
        assert again["limits"] == limits
        plain = (await client.post("/keys", json={"team": "search"})).json()
        assert plain["limits"] == {}


@pytest.mark.parametrize(
    ("limits", "param"),
    [
        ({"tokens_per_s": 50}, "limits.burst_tokens"),
        ({"burst_requests": 5}, "limits.requests_per_s"),
        ({"tokens_per_s": 0, "burst_tokens": 1}, "limits.tokens_per_s"),
        ({"tokens": 1}, "limits.tokens"),
        ([], "limits"),
    ],
)
async def test_limits_of_a_key_that_mean_nothing_are_named(limits: object, param: str) -> None:
    async with admin_api() as (client, keys):
        answer = await client.post("/keys", json={"team": "search", "limits": limits})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert keys.list() == []
