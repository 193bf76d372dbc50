"""Receives a JSON request body whole: bounded in bytes and in time, checked for its type first."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from starlette.types import Receive

from inferd.api.disconnect import ClientGoneError
from inferd.api.fields import shown
from inferd.api.headers import Headers
from inferd.ending import Ending
from inferd.errors import BodyTimeout, BodyTooLarge, InvalidBody

LENGTH_DIGITS_MAX: Final = 18

_JSON: Final = b"application/json"
_UTF8: Final = frozenset({b"utf-8", b"utf8"})


async def read_body(
    receive: Receive, headers: Headers, *, bytes_max: int, timeout_s: float
) -> bytes:
    """The body's bytes, at most `bytes_max`, all of them within `timeout_s` seconds.

    A body that announces too many bytes is refused before any of them is read.

    Raises:
        InvalidBody: not JSON by its content type, or compressed.
        BodyTooLarge, BodyTimeout: over a limit.
        ClientGoneError: the client left before the end of its body.
    """
    _check_headers(headers, bytes_max)
    with Ending() as ending:
        timer = asyncio.get_running_loop().call_later(
            timeout_s, ending.end, partial(_late, timeout_s)
        )
        try:
            return await _receive(receive, bytes_max)
        finally:
            timer.cancel()


def _late(timeout_s: float) -> BodyTimeout:
    return BodyTimeout(
        f"The request body did not arrive within {timeout_s:g} seconds. Send it again."
    )


def _check_headers(headers: Headers, bytes_max: int) -> None:
    content_type = encoding = length = None
    for name, value in headers:
        if name == b"content-type":
            content_type = value
        elif name == b"content-encoding":
            encoding = value
        elif name == b"content-length":
            length = value
    if content_type != _JSON:
        _check_content_type(content_type)
    if encoding is not None and encoding.strip().lower() not in {b"", b"identity"}:
        raise InvalidBody(
            f"Unsupported content encoding: '{_printable(encoding)}'. Send the body uncompressed.",
            code="unsupported_content_encoding",
        )
    # The server has checked that it is a number; one with very many digits is not worth reading.
    if length is not None and (len(length) > LENGTH_DIGITS_MAX or int(length) > bytes_max):
        raise _too_large(bytes_max)


def _check_content_type(value: bytes | None) -> None:
    media_type, *parameters = (value or b"").lower().split(b";")
    charsets = [p.partition(b"=")[2].strip(b' "') for p in parameters if b"charset=" in p]
    if media_type.strip() != _JSON or not _UTF8.issuperset(charsets):
        got = f"'{_printable(value)}'" if value else "none"
        raise InvalidBody(
            f"Unsupported content type: {got}. Send 'Content-Type: application/json'.",
            code="unsupported_content_type",
        )


async def _receive(receive: Receive, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > bytes_max:
            raise _too_large(bytes_max)
        if not message.get("more_body", False):
            return b"".join([*parts, part]) if parts else part
        parts.append(part)


def _too_large(bytes_max: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The request body is too large. Expected at most {bytes_max} bytes: send fewer or shorter "
        "messages."
    )


def _printable(value: bytes) -> str:
    return shown(value.decode("ascii", "replace"))
