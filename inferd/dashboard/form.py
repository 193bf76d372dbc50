"""A small urlencoded form: bounded in bytes and time, read once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from inferd.errors import BodyTimeout, BodyTooLarge, InvalidBody

if TYPE_CHECKING:
    from starlette.requests import Request

FORM_BYTES_MAX: Final = 65_536
FORM_S_MAX: Final = 10.0
FIELDS_MAX: Final = 64


async def form_of(http: Request) -> dict[str, str]:
    """Its fields by name, the last of each; kept with the request for whoever asks again.

    Raises:
        BodyTooLarge, BodyTimeout, InvalidBody: it is not what a page of ours sends.
    """
    kept: dict[str, str] | None = getattr(http.state, "form", None)
    if kept is None:
        kept = http.state.form = _fields(await _body(http))
    return kept


async def _body(http: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_S_MAX):
            async for part in http.stream():
                body += part
                if len(body) > FORM_BYTES_MAX:
                    raise BodyTooLarge(f"The form is over {FORM_BYTES_MAX} bytes.")
    except TimeoutError as error:
        raise BodyTimeout(f"The form did not arrive within {FORM_S_MAX:g} seconds.") from error
    return bytes(body)


def _fields(body: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FIELDS_MAX
        )
    except ValueError as error:
        raise InvalidBody("The form has too many fields.") from error
    return dict(pairs)
