"""Pages of other origins: what a browser asks first, and what its script may then read."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferd.api.cors import Cors
from inferd.api.middleware import Envelope
from inferd.errors import InvalidKey

PAGE = b"https://app.example.org"


async def answers(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/refuse":
        raise InvalidKey("no")
    await Response(b"ok")(scope, receive, send)


async def call(
    origins: list[str], method: str = "GET", path: str = "/", **headers: bytes
) -> tuple[int, dict[str, str]]:
    app: ASGIApp = Envelope(Cors(answers, origins), count=lambda *_: None)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    given = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "headers": given}
    await app(scope, receive, send)
    start = sent[0]
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}


async def test_a_preflight_is_answered_with_what_the_sdk_needs() -> None:
    status, headers = await call(
        [PAGE.decode()],
        "OPTIONS",
        origin=PAGE,
        access_control_request_method=b"POST",
        access_control_request_headers=b"Authorization, x-stainless-os,x-evil, content-type",
    )
    assert status == 204
    assert headers["access-control-allow-origin"] == PAGE.decode()
    assert headers["access-control-allow-headers"] == "authorization, x-stainless-os, content-type"
    assert headers["access-control-allow-methods"] == "GET, POST, DELETE"
    assert headers["vary"] == "Origin"
    assert headers["x-request-id"].startswith("req_")
    assert "access-control-allow-credentials" not in headers


async def test_answers_and_errors_may_be_read_by_a_page_of_the_list() -> None:
    for path, expected in (("/", 200), ("/refuse", 401)):
        status, headers = await call([PAGE.decode()], path=path, origin=PAGE)
        assert status == expected
        assert headers["access-control-allow-origin"] == PAGE.decode()
        assert "x-ratelimit-reset-tokens" in headers["access-control-expose-headers"]


async def test_other_pages_and_programs_get_no_such_header() -> None:
    for got in (
        (await call([PAGE.decode()], origin=b"https://evil.example.org"))[1],
        (await call([PAGE.decode()]))[1],
    ):
        assert not [name for name in got if name.startswith("access-control")]


async def test_a_star_is_for_every_page() -> None:
    _, headers = await call(["*"], origin=b"https://any.example.org")
    assert headers["access-control-allow-origin"] == "*"
