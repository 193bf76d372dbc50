"""The server itself, before applications of a few lines: HTTP/1.1 as any client may speak it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from inferd.api import http_protocol
from inferd.api.disconnect import SCOPE_KEY, client_of
from inferd.api.http_cycle import UNREAD_BODY_BYTES_MAX
from inferd.api.http_protocol import PIPELINED_MAX, ConnectionLimits
from inferd.api.listener import Listener
from inferd.config.address import Address
from tests.http.raw_connection import RawConnection, raw_connection

pytestmark = pytest.mark.real_time(timeout_s=20)

LIMITS = ConnectionLimits(connections_max=8, head_s_max=5.0, stall_s=5.0)


async def whole_body(receive: Receive) -> bytes:
    parts = []
    more = True
    while more:
        message = await receive()
        parts.append(message["body"])
        more = message["more_body"]
    return b"".join(parts)


async def answer(send: Send, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Path, query and body."""
    body = await whole_body(receive)
    await answer(send, b"%b %b %b" % (scope["path"].encode(), scope["query_string"], body))


async def chunks(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for part in (b"one ", b"two"):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})


@asynccontextmanager
async def connected(app: ASGIApp) -> AsyncIterator[RawConnection]:
    listener = Listener(Address("127.0.0.1", 0), "listen")
    async with asyncio.TaskGroup() as group:
        group.create_task(listener.run(app, LIMITS))
        try:
            async with raw_connection(listener.address) as client:
                yield client
        finally:
            listener.stop()
            listener.force()


async def test_a_connection_is_used_again_until_its_client_wants_its_end() -> None:
    async with connected(echo) as client:
        client.request("POST", "/a%20b?x=1", b"{}")
        assert (await client.answer()).body == b"/a b x=1 {}"
        client.request("GET", "/b", headers={"connection": "close"})
        last = await client.answer()
        assert (last.body, last.headers["connection"]) == (b"/b  ", "close")
        assert await client.ended()


async def test_answers_without_a_length_come_in_chunks_and_to_old_clients_until_the_end() -> None:
    async with connected(chunks) as client:
        client.request("GET", "/")
        new = await client.answer()
        assert (new.headers["transfer-encoding"], new.body) == ("chunked", b"one two")
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        old = await client.answer()
        assert "transfer-encoding" not in old.headers
        assert (old.headers["connection"], old.body) == ("close", b"one two")


async def test_a_head_is_answered_with_a_head() -> None:
    async with connected(echo) as client:
        client.request("HEAD", "/a")
        status, headers = await client.head()
        assert (status, headers["content-length"]) == (200, "4")
        client.request("GET", "/b")
        assert (await client.answer()).body == b"/b  "


async def test_a_client_that_asks_first_is_told_to_go_on_once_its_body_is_wanted() -> None:
    head = b"POST / HTTP/1.1\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n"
    async with connected(echo) as client:
        client.send(head)
        assert await client.head() == (100, {})
        client.send(b"{}")
        assert (await client.answer()).body == b"/  {}"
    async with connected(chunks) as client:
        client.send(head)
        assert (await client.answer()).status == 200, "it wants no body, and says so at once"


async def test_a_body_that_nobody_wanted_is_no_part_of_the_next_request() -> None:
    async with connected(chunks) as client:
        client.request("POST", "/", b"x" * 300_000)
        assert (await client.answer()).body == b"one two"
        client.request("GET", "/")
        assert (await client.answer()).body == b"one two"


async def test_a_body_is_taken_no_faster_than_it_is_wanted_and_whole() -> None:
    begun, wanted = asyncio.Event(), asyncio.Event()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await wanted.wait()
        await echo(scope, receive, send)

    body = b"x" * 30_000_000
    async with connected(late) as client:
        client.request("POST", "/", body)
        await begun.wait()
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert client._writer.transport.get_write_buffer_size() > len(body) // 2
        wanted.set()
        assert (await client.answer()).body == b"/  " + body


async def test_another_protocol_is_not_spoken_and_the_request_is_served_all_the_same() -> None:
    async with connected(echo) as client:
        client.request("GET", "/a", headers={"connection": "upgrade", "upgrade": "websocket"})
        assert (await client.answer()).body == b"/a  "
        assert await client.ended()


async def test_requests_sent_ahead_are_answered_in_order_and_are_not_many() -> None:
    async with connected(echo) as client:
        for number in range(PIPELINED_MAX + 1):
            client.request("POST", f"/{number}", b"{}")
        for number in range(PIPELINED_MAX + 1):
            assert (await client.answer()).body == b"/%d  {}" % number
        for number in range(PIPELINED_MAX + 2):
            client.request("GET", f"/{number}")
        assert await client.ended()


async def test_a_client_that_leaves_is_missed_by_all_that_it_had_sent() -> None:
    gone: list[str] = []
    begun = asyncio.Event()

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        del receive, send
        missed = asyncio.Event()
        client_of(scope).tell_when_gone(missed.set)
        begun.set()
        await missed.wait()
        gone.append(scope["path"])

    async with connected(wait) as client:
        client.request("GET", "/a")
        client.request("GET", "/b")
        await begun.wait()
        client.reset()
    assert gone == ["/a"], "the other one never began"


async def test_a_client_that_sent_much_and_leaves_is_missed_too() -> None:
    begun, missed = asyncio.Event(), asyncio.Event()

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        del send
        cycle = scope[SCOPE_KEY]
        while cycle.more_body:  # noqa: ASYNC110 - nothing tells that all has come, and waits
            await asyncio.sleep(0)
        assert len(await whole_body(receive)) > UNREAD_BODY_BYTES_MAX
        cycle.tell_when_gone(missed.set)
        begun.set()
        await missed.wait()

    async with connected(wait) as client:
        client.request("POST", "/", b"x" * (UNREAD_BODY_BYTES_MAX + 500))
        await begun.wait()
        client.reset()
        await missed.wait()


async def test_a_head_is_sent_once_whatever_its_answer_would_have_been() -> None:
    async def parts(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        headers = [(b"content-length", b"7")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in (b"one ", b"two"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    async with connected(parts) as client:
        client.request("HEAD", "/")
        assert (await client.head())[1]["content-length"] == "7"
        client.request("GET", "/")
        assert (await client.answer()).body == b"one two"


@pytest.mark.parametrize("said", [b"a\r\nset-cookie: x", b"a\nb", b"a\rb"])
async def test_a_header_never_breaks_its_line(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def split(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await answer(send, b"", (b"x-said", said))

    async with connected(split) as client:
        client.request("GET", "/")
        told = await client.answer()
        assert (told.status, told.body) == (500, b"Internal Server Error")
        assert not {"x-said", "set-cookie"} & told.headers.keys()
        assert await client.ended()
    assert "line break" in caplog.text


async def begin(send: Send, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def test_an_answer_that_breaks_off_does_not_look_whole() -> None:
    async def raises(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await begin(send, b"half")
        raise ValueError("no more")

    async def forgets(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await begin(send, b"half")

    async def short(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        headers = [(b"content-length", b"9")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"half"})

    async def long(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    for app in (raises, forgets, short, long):
        async with connected(app) as client:
            client.request("GET", "/")
            with suppress(ConnectionError, asyncio.IncompleteReadError):  # cut before its head
                assert not (await client.answer()).complete


async def test_whoever_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "KEEP_ALIVE_S", 0.2)
    began = asyncio.get_running_loop().time()
    async with connected(echo) as client:
        client.request("GET", "/a")
        assert (await client.answer()).status == 200
        assert await client.ended()
        assert asyncio.get_running_loop().time() - began >= 0.19  # a timer may fire a tick early
