"""Bodies on their way in: bounded in bytes and time, and refused for what they say they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from starlette.types import Message, Receive

from inferd.api.disconnect import ClientGoneError
from inferd.api.read_body import read_body
from inferd.clock import monotonic
from inferd.errors import BodyTimeout, BodyTooLarge, InvalidBody

JSON = [(b"content-type", b"application/json")]


def body(*parts: bytes) -> list[Message]:
    last = len(parts) - 1
    return [
        {"type": "http.request", "body": part, "more_body": i < last}
        for i, part in enumerate(parts)
    ]


def receiving(messages: Iterable[Message], gap_s: float = 0.0) -> Receive:
    left = iter(messages)

    async def receive() -> Message:
        await asyncio.sleep(gap_s)
        return next(left)

    return receive


def never() -> Receive:
    async def receive() -> Message:
        raise AssertionError("nothing is read of a body that is refused")

    return receive


async def read(
    receive: Receive, headers: list[tuple[bytes, bytes]] = JSON, bytes_max: int = 10
) -> bytes:
    return await read_body(receive, headers, bytes_max=bytes_max, timeout_s=30)


@pytest.mark.parametrize("parts", [(b"",), (b"{}",), (b"12345", b"67890"), (b"1", b"", b"2", b"")])
async def test_a_body_is_its_parts(parts: tuple[bytes, ...]) -> None:
    assert await read(receiving(body(*parts))) == b"".join(parts)


async def test_a_message_without_a_body_is_an_empty_one() -> None:
    assert await read(receiving([{"type": "http.request"}])) == b""


@pytest.mark.parametrize(
    "content_type",
    [
        b"application/json; charset=utf-8",
        b"application/json;charset=UTF-8",
        b'Application/JSON; charset="utf-8"; x=1',
        b" application/json ",
    ],
)
async def test_json_may_be_said_in_many_ways(content_type: bytes) -> None:
    assert await read(receiving(body(b"{}")), [(b"content-type", content_type)]) == b"{}"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-type", b"")],
        [(b"content-type", b"text/plain")],
        [(b"content-type", b"application/x-www-form-urlencoded")],
        [(b"content-type", b"application/jsonx")],
        [(b"content-type", b"application/json; charset=latin-1")],
        [(b"content-type", b"\xff" * 500)],
    ],
)
async def test_what_is_not_said_to_be_json_is_not_read(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(InvalidBody) as caught:
        await read(never(), headers)
    assert (caught.value.status, caught.value.code) == (400, "unsupported_content_type")
    assert "application/json" in caught.value.message
    assert len(caught.value.message) < 200


async def test_a_compressed_body_is_not_read() -> None:
    with pytest.raises(InvalidBody) as caught:
        await read(never(), [*JSON, (b"content-encoding", b"gzip")])
    assert caught.value.code == "unsupported_content_encoding"
    identity = [*JSON, (b"content-encoding", b"identity")]
    assert await read(receiving(body(b"{}")), identity) == b"{}"


@pytest.mark.parametrize("length", [b"11", b"9" * 5_000])
async def test_a_body_that_announces_too_much_is_not_read(length: bytes) -> None:
    with pytest.raises(BodyTooLarge) as caught:
        await read(never(), [*JSON, (b"content-length", length)])
    assert caught.value.status == 413
    assert "10 bytes" in caught.value.message


async def test_a_body_that_says_nothing_is_counted() -> None:
    endless = ({"type": "http.request", "body": b"12345", "more_body": True} for _ in range(3))
    with pytest.raises(BodyTooLarge):
        await read(receiving(endless))


async def test_a_body_has_a_time_for_all_of_it() -> None:
    drip = ({"type": "http.request", "body": b"", "more_body": True} for _ in range(1_000))
    began = monotonic()
    with pytest.raises(BodyTimeout) as caught:
        await read(receiving(drip, gap_s=7))
    assert caught.value.status == 408
    assert monotonic() - began == pytest.approx(30)


async def test_a_client_that_leaves_is_not_answered() -> None:
    with pytest.raises(ClientGoneError):
        await read(receiving([body(b"1", b"2")[0], {"type": "http.disconnect"}]))
