"""The dashboard: who gets in, what it shows, and that it does only what its own forms ask for."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from inferd.dashboard.session import COOKIE
from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import Gateway, gateway, until
from tests.http.raw_connection import ask, chat

pytestmark = pytest.mark.real_time

PAGES = ("", "/live", "/usage", "/requests", "/batches", "/keys", "/audit", "/playground")
PAGE_BYTES_MAX = 150_000
HOSTILE = '<script>alert("x")</script>'
TOKEN = re.compile(r'name="csrf_token" value="([0-9a-f]{64})"')


class Visitor:
    """A browser that runs no scripts."""

    def __init__(self, inferd: Gateway, http: aiohttp.ClientSession) -> None:
        self._root = f"http://{inferd.admin}/dashboard"
        self._http = http

    async def ask(
        self, method: str, path: str, **more: Any
    ) -> tuple[int, str, aiohttp.ClientResponse]:
        url = self._root + path
        async with self._http.request(method, url, allow_redirects=False, **more) as answer:
            return answer.status, await answer.text(), answer

    async def log_in(self, admin_key: str) -> int:
        status, _, _ = await self.ask("POST", "/login", data={"admin_key": admin_key})
        return status

    async def token(self, path: str = "/playground") -> str:
        _, page, _ = await self.ask("GET", path)
        found = TOKEN.search(page)
        assert found is not None, page
        return found[1]


@asynccontextmanager
async def visiting(inferd: Gateway, *, logged_in: bool = True) -> AsyncIterator[Visitor]:
    jar = aiohttp.CookieJar(unsafe=True)  # an address is no host name to it
    async with aiohttp.ClientSession(cookie_jar=jar) as http:
        visitor = Visitor(inferd, http)
        if logged_in:
            assert await visitor.log_in(inferd.admin_key) == 303
        yield visitor


async def test_nothing_is_shown_without_the_admin_key(tmp_path: Path, fast: EngineProcess) -> None:
    async with gateway(tmp_path, fast) as inferd, visiting(inferd, logged_in=False) as visitor:
        for path in PAGES:
            status, page, answer = await visitor.ask("GET", path)
            assert (status, answer.headers["location"]) == (303, "/dashboard/login")
            assert page == ""
        for wrong in ("", inferd.key, inferd.admin_key[:-1]):
            assert await visitor.log_in(wrong) == 403
        status, _, _ = await visitor.ask("POST", "/playground/chat", json=chat())
        assert status == 401
        bearer = {"Authorization": f"Bearer {inferd.admin_key}"}
        status, _, _ = await visitor.ask("GET", "", headers=bearer)  # the API's door is another
        assert status == 303


async def test_every_page_is_small_and_allows_nothing_from_elsewhere(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd, visiting(inferd) as visitor:
        await ask(inferd, chat(max_tokens=2))
        for path in (*PAGES, "/static/style.css", "/static/dashboard.js"):
            status, page, answer = await visitor.ask("GET", path)
            assert status == 200, (path, page)
            assert 0 < len(page.encode()) <= PAGE_BYTES_MAX
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert not re.findall(r'(?:src|href|action)="(?!/dashboard)[^"#]', page), path
            assert not re.search(r"<script>|style=|\son\w+=", page), path
        cookie = (await visitor.ask("POST", "/login", data={"admin_key": inferd.admin_key}))[2]
        flags = cookie.headers["set-cookie"].lower()
        assert flags.startswith(COOKIE)
        assert all(flag in flags for flag in ("httponly", "samesite=strict", "path=/dashboard"))


async def test_what_others_wrote_is_text_on_a_page(tmp_path: Path, fast: EngineProcess) -> None:
    async with gateway(tmp_path, fast) as inferd, visiting(inferd) as visitor:
        await inferd.new_key(name=HOSTILE)
        for path in ("/keys", f"/requests?id={HOSTILE}", f"/usage?by={HOSTILE}"):
            _, page, _ = await visitor.ask("GET", path)
            assert "<script>alert" not in page


async def test_a_request_says_why_on_its_page(tmp_path: Path, fast: EngineProcess) -> None:
    async with gateway(tmp_path, fast) as inferd, visiting(inferd) as visitor:
        async with inferd.post(chat(max_tokens=3)) as answer:
            response = await answer.json()
            request_id = answer.headers["x-request-id"]
        async with inferd.post({"model": "chat", "messages": []}) as answer:
            refused_id = answer.headers["x-request-id"]
            assert answer.status == 400
        await inferd.rows()
        for wanted in (request_id, response["id"]):
            status, page, _ = await visitor.ask("GET", f"/requests?id={wanted}")
            assert status == 200
            assert request_id in page
            assert "chat-1-a1" in page
        status, page, _ = await visitor.ask("GET", f"/requests/{refused_id}")
        assert status == 200
        assert "messages" in page
        status, page, _ = await visitor.ask("GET", "/requests/req_unknown")
        assert (status, "req_unknown" in page) == (404, True)
        _, page, _ = await visitor.ask("GET", "/usage?by=team&days=1")
        assert "search" in page


async def test_only_a_form_of_the_session_does_anything(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd, visiting(inferd) as visitor:
        key = (await inferd.ask_admin("POST", "/admin/v1/keys", {"team": "search"}))["id"]
        path = f"/keys/{key}/revoke"
        status, page, _ = await visitor.ask("GET", path)
        assert status == 200
        assert "cannot be undone" in page
        async with visiting(inferd) as other:
            stranger = await other.token()
        for wrong in ({}, {"csrf_token": "0" * 64}, {"csrf_token": stranger}):
            status, page, _ = await visitor.ask("POST", path, data=wrong)
            assert status == 403
            assert "nothing was done" in page
        assert await _state(inferd, key) == "active"
        token = await visitor.token(path)
        status, _, answer = await visitor.ask("POST", path, data={"csrf_token": token})
        assert (status, answer.headers["location"]) == (303, "/dashboard/keys")
        assert await _state(inferd, key) == "revoked"
        status, _, _ = await visitor.ask(
            "POST", "/keys/key_unknown/revoke", data={"csrf_token": token}
        )
        assert status == 404
        _, page, _ = await visitor.ask("GET", "/audit")
        assert "/keys/{id}/revoke" in page


async def test_a_batch_is_shown_and_cancelled(tmp_path: Path, fast: EngineProcess) -> None:
    async with (
        gateway(tmp_path, fast) as inferd,
        visiting(inferd) as visitor,
        inferd.openai() as sdk,
    ):
        await inferd.engine.fault("slow_first", seconds=30)
        line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": chat()}
        lines = [orjson.dumps({**line, "custom_id": str(number)}) for number in range(200)]
        file = await sdk.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch")
        batch = await sdk.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        _, page, _ = await visitor.ask("GET", "/batches")
        assert batch.id in page
        path = f"/batches/{batch.id}/cancel"
        token = await visitor.token(path)
        status, _, answer = await visitor.ask("POST", path, data={"csrf_token": token})
        assert (status, answer.headers["location"]) == (303, "/dashboard/batches")
        assert (await sdk.batches.retrieve(batch.id)).status in {"cancelling", "cancelled"}
        status, _, _ = await visitor.ask(
            "POST", "/batches/batch_unknown/cancel", data={"csrf_token": token}
        )
        assert status == 404


async def test_a_session_ends_when_its_admin_leaves(tmp_path: Path, fast: EngineProcess) -> None:
    async with gateway(tmp_path, fast) as inferd, visiting(inferd) as visitor:
        token = await visitor.token()
        status, _, _ = await visitor.ask("POST", "/logout", data={"csrf_token": token})
        assert status == 303
        status, _, _ = await visitor.ask("GET", "")
        assert status == 303


async def test_the_playground_bills_the_team_that_was_chosen(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd, visiting(inferd) as visitor:
        body = chat(max_tokens=3, stream=True)
        token = await visitor.token()
        for headers, refused in (
            ({}, 401),
            ({"x-csrf-token": "0" * 64, "x-inferd-team": "search"}, 401),
            ({"x-csrf-token": token}, 400),
            ({"x-csrf-token": token, "x-inferd-team": "nobody"}, 400),
        ):
            status, _, _ = await visitor.ask("POST", "/playground/chat", json=body, headers=headers)
            assert status == refused
        paying = {"x-csrf-token": token, "x-inferd-team": "search"}
        status, text, _ = await visitor.ask("POST", "/playground/chat", json=body, headers=paying)
        assert status == 200
        assert text.endswith("data: [DONE]\n\n")
        row = await inferd.row()
        assert (row.team, row.key_id, row.completion_tokens) == ("search", "dashboard", 3)


async def test_pools_workers_and_teams_are_there_with_their_plots(
    tmp_path: Path, fast: EngineProcess
) -> None:
    async with gateway(tmp_path, fast) as inferd, visiting(inferd) as visitor:
        await until(lambda: inferd.app.node.history.of("chat@1"))
        for _ in range(3):
            async with inferd.post(chat(max_tokens=3, stream=True)) as answer:
                await answer.read()
        inferd.app.node.history.sample()
        _, page, _ = await visitor.ask("GET", "/live")
        assert "chat-1-a1" in page
        assert page.count("<svg") == 4
        assert re.search(r'aria-label="TTFT: p50 [0-9.]+ s, p95 [0-9.]+ s"', page), page


async def _state(inferd: Gateway, key_id: str) -> str:
    keys = (await inferd.ask_admin("GET", "/admin/v1/keys"))["data"]
    return str(next(key["state"] for key in keys if key["id"] == key_id))
