"""A multipart/form-data body as it arrives: fields whole, files piece by piece.

Owns the bounds of a form: how many parts, how long a field, how long a silence. Order does not
matter and no length has to be announced. Memory is that of one read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.types import Message, Receive

from inferd.api.disconnect import ClientGoneError
from inferd.api.fields import shown
from inferd.api.headers import Headers, header
from inferd.errors import BodyTimeout, BodyTooLarge, InvalidBody

PARTS_MAX: Final = 16
FIELD_BYTES_MAX: Final = 4_096
FORM_BYTES: Final = PARTS_MAX * 16_384
"""What a form may have beside its file: boundaries, headers, fields."""
LENGTH_DIGITS_MAX: Final = 18
_FORM: Final = b"multipart/form-data"
_BOUNDARY_BYTES_MAX: Final = 70
_PLAIN: Final = frozenset({b"7bit", b"8bit", b"binary"})


@dataclass(frozen=True, slots=True)
class Field:
    """A part that is no file."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class FileBegins:
    """Its bytes follow, up to the next of these or a field. `filename` is the client's."""

    name: str
    filename: str


Event = Field | FileBegins | bytes


async def read_form(
    receive: Receive, headers: Headers, *, bytes_max: int, silence_s: float
) -> AsyncIterator[Event]:
    """The parts of a form in the order in which they come; a file of at most `bytes_max`.

    Raises:
        InvalidBody: no form, a broken one, or one that ends in the middle.
        BodyTooLarge: by what it announces or by what has come.
        BodyTimeout: nothing came for `silence_s` seconds.
        ClientGoneError: the client left before the end.
    """
    form = _Form(_boundary(headers))
    whole_max = bytes_max + FORM_BYTES
    length = header(headers, b"content-length")
    if length is not None and (len(length) > LENGTH_DIGITS_MAX or int(length) > whole_max):
        raise _too_large(bytes_max)
    size = 0
    more = True
    while more:
        message = await _next(receive, silence_s)
        data = message.get("body", b"")
        size += len(data)
        if size > whole_max:
            raise _too_large(bytes_max)
        for event in form.take(data):
            yield event
        more = message.get("more_body", False)
    form.end()


class _Form:
    """The parser's callbacks, turned into a list of events for each piece of the body."""

    def __init__(self, boundary: bytes) -> None:
        self._events: list[Event] = []
        self._parts = 0
        self._ended = False
        self._header_name = b""
        self._header_value = b""
        self._disposition = b""
        self._field: str | None = None
        self._value = bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begins,
                "on_header_begin": self._header_begins,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value_piece,
                "on_header_end": self._header_ends,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._data,
                "on_part_end": self._part_ends,
                "on_end": self._end,
            },
        )

    def take(self, data: bytes) -> list[Event]:
        """Raises InvalidBody."""
        self._events = []
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidBody(f"The form cannot be read: {error}.") from error
        return self._events

    def end(self) -> None:
        """Raises InvalidBody if the closing boundary has not come."""
        if not self._ended:
            raise InvalidBody("The form ends before its closing boundary. Send it whole.")

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise InvalidBody(f"The form has too many parts. Expected at most {PARTS_MAX}.")
        self._disposition = b""

    def _header_begins(self) -> None:
        self._header_name = self._header_value = b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _header_value_piece(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header_ends(self) -> None:
        name = self._header_name.lower()
        if name == b"content-disposition":
            self._disposition = self._header_value
        elif name == b"content-transfer-encoding" and self._header_value.lower() not in _PLAIN:
            raise InvalidBody("A part of the form is encoded. Send it as it is, in bytes.")

    def _headers_finished(self) -> None:
        kind, options = parse_options_header(self._disposition.decode("latin-1"))
        name = options.get(b"name")
        if kind != b"form-data" or name is None:
            raise InvalidBody("A part of the form has no name.")
        filename = options.get(b"filename")
        if filename is None:
            self._field = _text(name, "name")
            self._value.clear()
        else:
            self._field = None
            self._events.append(FileBegins(_text(name, "name"), _text(filename, "filename")))

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._events.append(data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > FIELD_BYTES_MAX:
            raise InvalidBody(
                f"The field '{shown(self._field)}' is too long. Expected at most {FIELD_BYTES_MAX} "
                "bytes; a file needs a filename."
            )

    def _part_ends(self) -> None:
        if self._field is not None:
            self._events.append(Field(self._field, _text(bytes(self._value), self._field)))

    def _end(self) -> None:
        self._ended = True


def _boundary(headers: Headers) -> bytes:
    content_type = header(headers, b"content-type") or b""
    kind, options = parse_options_header(content_type.decode("latin-1"))
    if kind != _FORM:
        got = f"'{shown(content_type.decode('ascii', 'replace'))}'" if content_type else "none"
        raise InvalidBody(
            f"Unsupported content type: {got}. Send 'Content-Type: multipart/form-data'.",
            code="unsupported_content_type",
        )
    boundary = options.get(b"boundary", b"")
    if not 0 < len(boundary) <= _BOUNDARY_BYTES_MAX:
        raise InvalidBody("The content type names no usable boundary of the form's parts.")
    return boundary


def _text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidBody(f"The form's '{shown(what)}' is not UTF-8.") from error


async def _next(receive: Receive, silence_s: float) -> Message:
    try:
        async with asyncio.timeout(silence_s):
            message = await receive()
    except TimeoutError:
        raise BodyTimeout(
            f"Nothing of the body arrived for {silence_s:g} seconds. Send it again."
        ) from None
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message


def _too_large(bytes_max: int) -> BodyTooLarge:
    return BodyTooLarge(f"The file is too large. Expected at most {bytes_max} bytes.")
