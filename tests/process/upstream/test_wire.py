"""The relay's client on real sockets: reuse, back-pressure, loss at every moment."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from inferd.errors import ShuttingDown, UpstreamError, WorkerUnreachable
from inferd.upstream.connection import BUFFER_BYTES_MAX
from inferd.upstream.wire import Exchange, WorkerPool

pytestmark = pytest.mark.real_time

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return head + await reader.readexactly(int(line.split(b":")[1]))
    return head


@asynccontextmanager
async def worker(serve: Serve) -> AsyncIterator[WorkerPool]:
    """A server of our own script; its connections end with the scope."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is done with us
        finally:
            writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    pool = WorkerPool(f"http://127.0.0.1:{port}/base", {"Authorization": "Bearer k"})
    try:
        yield pool
    finally:
        pool.close()
        listener.close()
        await listener.wait_closed()


async def test_a_body_arrives_whole_and_the_connection_is_used_again() -> None:
    connections = 0
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            requests.append(await read_request(reader))
            writer.write(HEAD + chunk(b"hel") + chunk(b"lo") + END)

    async with worker(serve) as pool:
        for _ in range(3):
            exchange = await pool.open("POST", "/v1/x", b'{"a":1}')
            assert await exchange.head() == 200
            assert await exchange.read_all() == b"hello"
            exchange.close()
    assert connections == 1
    assert requests[0].startswith(b"POST /base/v1/x HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer k\r\n" in requests[0]
    assert requests[0].endswith(b'\r\n\r\n{"a":1}')


async def test_an_idle_connection_that_the_worker_closed_is_replaced_unseen() -> None:
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        await read_request(reader)
        served += 1
        writer.write(HEAD + chunk(b"x") + END)
        await reader.read(1)  # the next request's first byte: closed without an answer

    async with worker(serve) as pool:
        for _ in range(2):
            exchange = await pool.open("GET", "/")
            assert await exchange.head() == 200
            assert await exchange.read_all() == b"x"
            exchange.close()
    assert served == 2


async def test_nobody_listening_is_a_typed_error() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader, writer

    async with worker(serve) as pool:
        pass
    with pytest.raises(WorkerUnreachable):
        await pool.open("GET", "/")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        HEAD,
        HEAD + chunk(b"abc"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        b"garbage\r\n\r\n",
    ],
)
async def test_a_worker_lost_at_any_moment_is_a_typed_error(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)

    async with worker(serve) as pool:
        exchange = await pool.open("POST", "/", b"{}")
        with pytest.raises(WorkerUnreachable):
            await whole_body(exchange)
        assert exchange.failed
        exchange.close()


async def test_what_came_before_the_loss_is_handed_out_first() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(b"abc"))

    async with worker(serve) as pool:
        exchange = await pool.open("GET", "/")
        await exchange.head()
        assert await exchange.read() == b"abc"
        with pytest.raises(WorkerUnreachable):
            await exchange.read()
        exchange.close()


async def test_a_body_without_length_ends_with_its_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nabc")

    async with worker(serve) as pool:
        exchange = await pool.open("GET", "/")
        await exchange.head()
        assert await exchange.read_all() == b"abc"
        exchange.close()


async def test_an_interim_answer_is_passed_over() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + chunk(b"x") + END)
        await reader.read()

    async with worker(serve) as pool:
        exchange = await pool.open("POST", "/", b"{}")
        assert await exchange.head() == 200
        assert await exchange.read_all() == b"x"
        exchange.close()


async def test_fail_ends_a_pending_read_with_that_error() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD)
        await reader.read()

    async with worker(serve) as pool:
        exchange = await pool.open("GET", "/")
        await exchange.head()
        error = ShuttingDown("bye")
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(failing(exchange.read()))
            await asyncio.sleep(0)
            exchange.fail(error)
            assert await reading is error
        exchange.close()


async def whole_body(exchange: Exchange) -> bytes:
    await exchange.head()
    return await exchange.read_all()


async def failing(awaitable: Awaitable[bytes]) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await awaitable
    return caught.value


async def test_unread_bytes_are_bounded_and_the_worker_is_slowed() -> None:
    written = 0
    blocked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(HEAD)
        piece = chunk(b"x" * 65_536)
        for _ in range(1_000):
            writer.write(piece)
            written += 65_536
            try:
                async with asyncio.timeout(0.5):
                    await writer.drain()
            except TimeoutError:
                blocked.set()
                return

    async with worker(serve) as pool:
        exchange = await pool.open("GET", "/")
        await exchange.head()
        await blocked.wait()
        unread = await exchange.read()
        assert len(unread) <= BUFFER_BYTES_MAX + 262_144  # one more read of the socket
        assert written < 60_000_000
        exchange.close()


async def test_a_prompt_is_not_kept_while_its_answer_streams() -> None:
    size = 8_000_000
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(b"first"))
        await over.wait()
        writer.write(END)

    async with worker(serve) as pool:
        tracemalloc.start(1)
        try:
            exchange = await pool.open("POST", "/", b"x" * size)
            await exchange.head()
            kept, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        over.set()
        assert await exchange.read_all() == b"first"
        exchange.close()
    assert most > size > 4 * kept


async def test_an_answer_over_its_bound_is_refused() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(b"x" * 2_000))
        await reader.read()

    async with worker(serve) as pool:
        exchange = await pool.open("GET", "/")
        await exchange.head()
        with pytest.raises(UpstreamError, match="over 1000 bytes"):
            await exchange.read_all(1_000)
        exchange.close()


async def test_a_finished_answer_frees_its_connection_when_its_end_comes() -> None:
    go_on = asyncio.Event()
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(HEAD + chunk(b"data: [DONE]\n\n"))
        await go_on.wait()
        writer.write(END)
        await read_request(reader)
        writer.write(HEAD + END)
        await reader.read()

    async with worker(serve) as pool:
        exchange = await pool.open("GET", "/")
        await exchange.head()
        await exchange.read()
        exchange.finish()
        go_on.set()
        while not pool.idle:  # noqa: ASYNC110 - the end of a body is nobody's event
            await asyncio.sleep(0)
        second = await pool.open("GET", "/")
        assert await second.head() == 200
        second.close()
    assert connections == 1


async def test_a_connection_with_bytes_that_nobody_read_is_not_used_again() -> None:
    """It stopped reading because of them: the next request on it would wait for ever."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(HEAD + chunk(b"x" * BUFFER_BYTES_MAX) + chunk(b"y" * 1_000) + END)

    async with worker(serve) as pool:
        for _ in range(3):
            exchange = await pool.open("GET", "/")
            assert await exchange.head() == 200
            await asyncio.sleep(0.05)
            assert not exchange.whole, "it has come whole, but nobody has read it"
            exchange.finish()
        exchange = await pool.open("GET", "/")
        assert await exchange.head() == 200
        assert len(await exchange.read_all()) == BUFFER_BYTES_MAX + 1_000
        exchange.close()
