"""A stream while nothing is sent: comments in time, a look at the client now and then, no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

import pytest
from starlette.types import Message

from inferd.api.disconnect import ClientGoneError, WhileClientWaits
from inferd.api.event_stream import FIRST_EVENT_S_MAX, KEEP_ALIVE, KEEP_ALIVE_S, EventStream
from inferd.clock import monotonic
from inferd.errors import DeadlineExceeded
from tests.unit.api.client_end import ClientEnd


class Client(ClientEnd):
    """Keeps what was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[float, bytes]] = []
        self.ended = False
        self._began = monotonic()

    def send(self, message: Message) -> Awaitable[None]:
        """Written at once, as the server's is; awaited, it has gone out."""
        if message["type"] == "http.response.body":
            self.written.append((monotonic() - self._began, message["body"]))
            self.ended = not message["more_body"]
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sent.set_result(None)
        return sent

    @property
    def comments(self) -> list[float]:
        return [at for at, data in self.written if data == KEEP_ALIVE]


class CountedStream(EventStream):
    ticks = 0

    def tick(self) -> None:
        self.ticks += 1
        super().tick()


@contextmanager
def streaming(client: Client, stall_s: float) -> Iterator[CountedStream]:
    stream = CountedStream(client, client.send, stall_s=stall_s)
    with WhileClientWaits(client, stream):
        yield stream


@pytest.mark.parametrize("stall_s", [0.5, 1.0, 10.0, 30.0, 600.0])
async def test_comments_come_in_time_and_looks_are_few(stall_s: float) -> None:
    client = Client()
    with streaming(client, stall_s) as stream:
        await asyncio.sleep(100)
        assert stream.ticks <= 2 * 100 / min(stall_s, 30.0) + 10
    assert client.comments == [FIRST_EVENT_S_MAX + KEEP_ALIVE_S * n for n in range(7)]


async def test_a_stream_that_talks_gets_no_comment() -> None:
    client = Client()
    with streaming(client, 30.0) as stream:
        for _ in range(20):
            await asyncio.sleep(4.9)
            await stream.send(b"data: {}\n\n")
    assert client.comments == []


async def test_a_pause_inside_a_stream_is_filled_within_its_bound() -> None:
    client = Client()
    with streaming(client, 30.0) as stream:
        await asyncio.sleep(4)
        await stream.send(b"data: {}\n\n")
        await asyncio.sleep(40)
    assert client.comments == [19, 34]


async def test_a_client_that_accepts_nothing_is_cut_after_the_limit() -> None:
    client = Client()
    began = monotonic()
    with pytest.raises(ClientGoneError):
        await _stream_unread(client)
    assert 30 <= monotonic() - began <= 45
    assert client.comments == []


async def _stream_unread(client: Client) -> None:
    with streaming(client, 30.0) as stream:
        await stream.send(b"x" * 1_000)
        client.unread_bytes = 600
        await asyncio.sleep(100)


async def test_a_client_that_accepts_a_little_now_and_then_is_kept() -> None:
    client = Client()
    with streaming(client, 30.0) as stream:
        await stream.send(b"x" * 20_000)
        client.unread_bytes = 10_000
        for _ in range(30):
            await asyncio.sleep(20)
            client.unread_bytes -= 1
            if client.unread_bytes % 2:
                await stream.send(b"y" * 100)
                client.unread_bytes += 100
        assert not client.gone


async def test_an_error_is_the_last_that_is_sent() -> None:
    client = Client()
    with streaming(client, 30.0) as stream:
        await stream.send(b"data: {}\n\n")
        await stream.fail(DeadlineExceeded("Too late."), "req_1")
    assert client.ended
    assert b'"deadline_exceeded"' in client.written[-1][1]
    assert b"[DONE]" not in b"".join(data for _, data in client.written)
