"""Browsers of other origins: preflights are answered, and their scripts may read the answers.

Only for the configured origins; without any this layer is not there. Credentials are never allowed:
a key comes in a header that the page's own script sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inferd.api.headers import header
from inferd.api.request_record import record_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

ANY: Final = "*"
ALLOWED_HEADERS: Final = frozenset(
    {
        "accept",
        "authorization",
        "content-type",
        "idempotency-key",
        "openai-organization",
        "openai-project",
        "user-agent",
        "x-client-request-id",
    }
)
SDK_PREFIX: Final = "x-stainless-"
HEADERS_CHARS_MAX: Final = 2_048
EXPOSED_HEADERS: Final = ", ".join(
    [
        "x-request-id",
        "retry-after",
        "retry-after-ms",
        "x-should-retry",
        "openai-processing-ms",
        "x-inferd-source",
        *(
            f"x-ratelimit-{part}-{unit}"
            for part in ("limit", "remaining", "reset")
            for unit in ("requests", "tokens")
        ),
    ]
)
_PREFLIGHT: Final = [
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-max-age", b"600"),
    (b"content-length", b"0"),
]


class Cors:
    """Inside the envelope, which sends what is noted in the record, with errors too."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = header(scope["headers"], b"origin")
        origin = given.decode("latin-1") if given is not None else None
        if origin is None or not ({origin, ANY} & self._origins):
            await self._app(scope, receive, send)
            return
        allowed = ANY if ANY in self._origins else origin
        record_of(scope).more_headers = [
            (b"access-control-allow-origin", allowed.encode("latin-1")),
            (b"access-control-expose-headers", EXPOSED_HEADERS.encode("ascii")),
            (b"vary", b"Origin"),
        ]
        asked = header(scope["headers"], b"access-control-request-method")
        if scope["method"] != "OPTIONS" or asked is None:
            await self._app(scope, receive, send)
            return
        wanted = header(scope["headers"], b"access-control-request-headers") or b""
        headers = [*_PREFLIGHT, (b"access-control-allow-headers", _allowed(wanted))]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _allowed(wanted: bytes) -> bytes:
    """Of the headers that a script wants to send, those it may."""
    names = wanted[:HEADERS_CHARS_MAX].decode("latin-1").lower().split(",")
    known = [
        name
        for one in names
        if (name := one.strip()) in ALLOWED_HEADERS or name.startswith(SDK_PREFIX)
    ]
    return ", ".join(known).encode("latin-1")
