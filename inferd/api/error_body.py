"""The only renderer: an error -> status, headers and OpenAI's body, or an event of a stream.

Pure. All four keys are always there. What is no client's business (our own mistakes, the disk,
the configuration) becomes a 500 that says nothing but the request id; an operator's listener may
ask for more. SDKs retry 409, 429 and 5xx, so they are told whenever that is useless.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import orjson
from starlette.types import Send

from inferd.errors import (
    AuthError,
    BodyTimeout,
    ConfigError,
    DeadlineExceeded,
    FileStoreError,
    InferdError,
    InternalError,
    LimitError,
    MethodNotAllowed,
    ProvisionError,
    RangeNotSatisfiable,
    RateLimited,
    RequestError,
    StorageError,
    UpstreamError,
)

RETRY_AFTER_S_MAX: Final = 60
"""The longest wait that every SDK obeys; beyond it they retry sooner, so they must not retry."""

CLIENT_ERRORS: Final = (
    RequestError,
    AuthError,
    LimitError,
    UpstreamError,
    DeadlineExceeded,
    FileStoreError,
)
"""What a client may read; anything else is our own trouble."""
_OPERATORS: Final[dict[type[InferdError], tuple[int, str, str]]] = {
    ConfigError: (400, "invalid_request_error", "invalid_config"),
    StorageError: (500, "server_error", "storage_error"),
    ProvisionError: (500, "server_error", "provision_error"),
}
_JSON: Final = (b"content-type", b"application/json")
_NO_RETRY: Final = (b"x-should-retry", b"false")


class Rendered(NamedTuple):
    """An answer without its `content-length`."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def render(error: BaseException, request_id: str, *, operator: bool = False) -> Rendered:
    """The whole answer. `operator`: the listener is for admins, who may read everything."""
    status, content, source = _describe(error, request_id, operator=operator)
    headers = [
        _JSON,
        (b"x-request-id", request_id.encode("ascii")),
        (b"x-inferd-source", source.encode("ascii")),
    ]
    headers += _retry_headers(error, status)
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allow).encode("ascii")))
    elif isinstance(error, AuthError) and status == AuthError.status:
        headers.append((b"www-authenticate", b"Bearer"))
    elif isinstance(error, BodyTimeout):
        headers.append((b"connection", b"close"))  # the rest of the body may never come
    elif isinstance(error, RangeNotSatisfiable):
        headers.append((b"content-range", b"bytes */%d" % error.size))
    return Rendered(status, headers, orjson.dumps({"error": content}))


def error_content(error: BaseException, request_id: str = "") -> dict[str, Any]:
    """What an event tells of an error: message, type, param and code."""
    return _describe(error, request_id, operator=False)[1]


async def respond(send: Send, rendered: Rendered) -> None:
    """Send a rendered error as the whole answer."""
    length = (b"content-length", str(len(rendered.body)).encode("ascii"))
    headers = [*rendered.headers, length]
    await send({"type": "http.response.start", "status": rendered.status, "headers": headers})
    await send({"type": "http.response.body", "body": rendered.body})


def _describe(
    error: BaseException, request_id: str, *, operator: bool
) -> tuple[int, dict[str, Any], str]:
    """Status, the error object, and who failed."""
    if isinstance(error, CLIENT_ERRORS):
        kind = error.limit if isinstance(error, RateLimited) else error.type
        status, code = error.status, error.code
    elif operator and isinstance(error, InferdError) and type(error) in _OPERATORS:
        status, kind, code = _OPERATORS[type(error)]
    else:
        return _internal(request_id)
    # An odd file name in a message must not break the renderer.
    message = error.message.encode("utf-8", "backslashreplace").decode()
    content = {"message": message, "type": kind, "param": error.param, "code": code}
    return status, content, error.source


def _internal(request_id: str) -> tuple[int, dict[str, Any], str]:
    named = f" Give the request id {request_id} to whoever runs it." if request_id else ""
    message = f"The server had an error while processing your request.{named}"
    content = {"message": message, "type": InternalError.type, "param": None, "code": None}
    return InternalError.status, content, InternalError.source


def _retry_headers(error: BaseException, status: int) -> list[tuple[bytes, bytes]]:
    if not isinstance(error, CLIENT_ERRORS):
        return [] if status < InternalError.status else [_NO_RETRY]
    headers = []
    useless = error.client_retry is False
    wait_s = error.retry_after_s
    if wait_s is not None:
        if math.isfinite(wait_s):
            seconds = max(1, math.ceil(wait_s))
            headers.append((b"retry-after", str(seconds).encode("ascii")))
            useless = useless or seconds > RETRY_AFTER_S_MAX
        else:
            useless = True
    if useless:
        headers.append(_NO_RETRY)
    return headers
