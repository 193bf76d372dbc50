"""A stream while nothing is sent: comments in time, a look at the client now and then, no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Message

from inferd.api.disconnect import ClientGoneError, while_client_waits
from inferd.api.event_stream import FIRST_EVENT_S_MAX, KEEP_ALIVE, KEEP_ALIVE_S, EventStream
from inferd.clock import monotonic
from inferd.errors import DeadlineExceeded


class Client:
    """The server's side of a connection: what was written, what is unread, whether it is cut."""

    def __init__(self) -> None:
        self.unread = 0
        self.written: list[tuple[float, bytes]] = []
        self.ended = False
        self._gone = asyncio.Event()
        self._began = monotonic()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.written.append((monotonic() - self._began, message["body"]))
            self.ended = not message["more_body"]

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self._gone.set()

    @property
    def comments(self) -> list[float]:
        return [at for at, data in self.written if data == KEEP_ALIVE]


class CountedStream(EventStream):
    ticks = 0

    async def tick(self) -> None:
        self.ticks += 1
        await super().tick()


@asynccontextmanager
async def streaming(client: Client, stall_s: float) -> AsyncIterator[CountedStream]:
    stream = CountedStream({"inferd.transport": client}, client.send, stall_s=stall_s)
    async with while_client_waits(client.receive, stream):
        yield stream


@pytest.mark.parametrize("stall_s", [0.5, 1.0, 10.0, 30.0, 600.0])
async def test_comments_come_in_time_and_looks_are_few(stall_s: float) -> None:
    client = Client()
    async with streaming(client, stall_s) as stream:
        await asyncio.sleep(100)
        assert stream.ticks <= 2 * 100 / min(stall_s, 30.0) + 10
    assert client.comments == [FIRST_EVENT_S_MAX + KEEP_ALIVE_S * n for n in range(7)]


async def test_a_stream_that_talks_gets_no_comment() -> None:
    client = Client()
    async with streaming(client, 30.0) as stream:
        for _ in range(20):
            await asyncio.sleep(4.9)
            await stream.send(b"data: {}\n\n")
    assert client.comments == []


async def test_a_pause_inside_a_stream_is_filled_within_its_bound() -> None:
    client = Client()
    async with streaming(client, 30.0) as stream:
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
    async with streaming(client, 30.0) as stream:
        await stream.send(b"x" * 1_000)
        client.unread = 600
        await asyncio.sleep(100)


async def test_a_client_that_accepts_a_little_now_and_then_is_kept() -> None:
    client = Client()
    async with streaming(client, 30.0) as stream:
        await stream.send(b"x" * 20_000)
        client.unread = 10_000
        for _ in range(30):
            await asyncio.sleep(20)
            client.unread -= 1
            if client.unread % 2:
                await stream.send(b"y" * 100)
                client.unread += 100
        assert not client._gone.is_set()


async def test_an_error_is_the_last_that_is_sent() -> None:
    client = Client()
    async with streaming(client, 30.0) as stream:
        await stream.send(b"data: {}\n\n")
        await stream.fail(DeadlineExceeded("Too late."), "req_1")
    assert client.ended
    assert b'"deadline_exceeded"' in client.written[-1][1]
    assert b"[DONE]" not in b"".join(data for _, data in client.written)
