"""A worker's bytes, however they are cut: every part of its answer reaches somebody once."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from inferd.upstream.connection import Connection

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class Socket(asyncio.Transport):
    """Takes nothing, gives nothing."""

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """There is no more than what is fed."""

    def resume_reading(self) -> None:
        """Likewise."""


class Choosy:
    """Takes what it wants; `..._taken` say of each offer whether it does."""

    def __init__(self, chunks_taken: list[bool], blocks_taken: list[bool]) -> None:
        self.got: list[bytes] = []
        self._chunks, self._blocks = iter(chunks_taken), iter(blocks_taken)

    def push(self, data: bytes) -> bool:
        if not next(self._blocks, True):
            return False
        self.got.append(data)
        return True

    def push_chunk(self, chunk: bytes) -> bool:
        size, _, rest = chunk.partition(b"\r\n")
        length = int(size or b"0", 16)
        if not length or len(rest) != length + 2 or not next(self._chunks, True):
            return False
        self.got.append(rest[:-2])
        return True


class ChunksOnly:
    """Takes whatever is offered as a chunk."""

    def __init__(self) -> None:
        self.offered: list[bytes] = []

    def push(self, data: bytes) -> bool:
        del data
        return False

    def push_chunk(self, chunk: bytes) -> bool:
        self.offered.append(chunk)
        return True


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def received(pieces: list[bytes], taker: Choosy) -> bytes:
    """What a taker and a reader get."""
    got = taker.got

    async def run() -> None:
        connection = Connection()
        connection.connection_made(cast("asyncio.BaseTransport", Socket()))
        connection.data_received(HEAD)
        for piece in pieces:
            if connection.has_bytes():
                got.append(connection.take())
            pushing = connection.push(taker)
            pushing.send(None)
            connection.data_received(piece)
            pushing.close()
            if connection.has_bytes():
                got.append(connection.take())
        assert connection.whole
        assert connection.error is None

    asyncio.run(run())
    return b"".join(got)


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=12),
    st.lists(st.integers(0, 1_000), max_size=40),
    st.booleans(),
    st.lists(st.booleans(), max_size=12),
    st.lists(st.booleans(), max_size=12),
)
def test_no_byte_of_a_body_is_lost_or_doubled(
    parts: list[bytes],
    cuts: list[int],
    at_chunks: bool,
    chunks_taken: list[bool],
    blocks_taken: list[bool],
) -> None:
    chunks = [framed(part) for part in parts]
    stream = b"".join(chunks) + END
    edges = {0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)}
    if at_chunks:  # as a worker writes them, but for some
        edges |= {sum(map(len, chunks[:number])) for number in range(len(chunks) + 1)}
    pieces = [stream[start:end] for start, end in pairwise(sorted(edges))]
    assert received(pieces, Choosy(chunks_taken, blocks_taken)) == b"".join(parts)


def test_a_chunk_of_its_own_is_not_parsed() -> None:
    """What makes a streamed event cheap: were it offered never, no test of bytes would tell."""
    taker = ChunksOnly()

    async def run() -> None:
        connection = Connection()
        connection.connection_made(cast("asyncio.BaseTransport", Socket()))
        connection.data_received(HEAD + framed(b"first"))
        connection.take()
        pushing = connection.push(taker)
        pushing.send(None)
        connection.data_received(framed(b"second"))
        connection.data_received(framed(b"third"))
        pushing.close()

    asyncio.run(run())
    assert taker.offered == [framed(b"second"), framed(b"third")]
