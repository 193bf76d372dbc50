"""The `Idempotency-Key` of a request, and the digest by which two requests are the same."""

from __future__ import annotations

from typing import Final

import orjson
from starlette.requests import Request
from xxhash import xxh3_128

from inferd.api.fields import text
from inferd.api.headers import header
from inferd.storage.idempotency import Claim

HEADER: Final = b"idempotency-key"
KEY_CHARS_MAX: Final = 255
_key: Final = text(KEY_CHARS_MAX)


class Idempotency:
    """Of one request that has a key. What it says is fed in as it comes."""

    def __init__(self, key: str, team: str, path: str) -> None:
        self._key = key
        self._team = team
        self._path = path
        self._digest = xxh3_128()

    def content(self, data: bytes) -> None:
        self._digest.update(data)

    def claim(self, *fields: object) -> Claim:
        """Once all of `content` is in."""
        self._digest.update(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS))
        return Claim(self._team, self._path, self._key, self._digest.hexdigest())


def idempotency_of(http: Request, team: str, path: str) -> Idempotency | None:
    """None: the client sent no key. Raises InvalidField for one that is too long."""
    value = header(http.scope["headers"], HEADER)
    if not value:
        return None
    return Idempotency(_key(value.decode("latin-1"), "Idempotency-Key"), team, path)
