"""Look-ups in the raw headers of an ASGI scope: lower-case names, a short list, no copies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]


def header(headers: Headers, name: bytes) -> bytes | None:
    """The first value under `name`, which must be in lower case."""
    for key, value in headers:
        if key == name:
            return value
    return None
