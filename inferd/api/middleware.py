"""The outermost layer of both listeners: request id, error bodies, access log, HTTP counts.

Pure ASGI. Nothing above it renders errors: a handler raises, and what it raised becomes OpenAI's
body here, whatever it was. After a response has started nothing can be rendered any more; the error
then goes on to the server, which cuts the connection. Per chunk it costs one attribute test.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferd.api.disconnect import ClientGoneError
from inferd.api.error_body import CLIENT_ERRORS, render, respond
from inferd.api.fields import shown
from inferd.api.headers import header
from inferd.api.request_record import SCOPE_KEY, RequestRecord
from inferd.clock import monotonic
from inferd.errors import InferdError, InvalidBody, MethodNotAllowed, UnknownUrl
from inferd.inference import Outcome, new_request_id
from inferd.logs import REQUEST_ID, line

CLIENT_REQUEST_ID_CHARS_MAX: Final = 512
RETRY_COUNT_DIGITS_MAX: Final = 3
NO_ROUTE: Final = "unknown"
"""The route of requests that no route matches, in log and metrics: never the path itself."""
STATUS_CLIENT_GONE: Final = 499
"""Logged, never sent."""

_QUIET: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_VERSION: Final = (b"openai-version", b"2020-10-01")
_NOT_FOUND: Final = 404
_NOT_ALLOWED: Final = 405
_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500

_access_log: Final = logging.getLogger("inferd.access")
_log: Final = logging.getLogger(__name__)

Count = Callable[[str, str, int], None]
"""Counts one answer: route pattern, method, status."""
Refused = Callable[[RequestRecord, str, int], None]
"""Notes an answer for whoever asks why: record, route pattern, status."""


class Writer(Protocol):
    """Writes down what requests leave behind."""

    @property
    def behind(self) -> bool: ...

    async def caught_up(self) -> None: ...


class Envelope:
    """Wraps the application of one listener. `operator`: its clients are admins, who see more."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        count: Count,
        routes: Sequence[BaseRoute] = (),
        refused: Refused | None = None,
        writer: Writer | None = None,
        operator: bool = False,
    ) -> None:
        """`routes`: where several have one path, all of them, for what it allows.

        `writer`: whoever comes while it is behind waits, or requests would end the service.
        """
        self._app = app
        self._routes = routes
        self._count = count
        self._refused = refused
        self._writer = writer
        self._operator = operator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(new_request_id(), monotonic())
        scope[SCOPE_KEY] = record
        scope["app"] = self._app  # makes the router raise its 404 and 405 instead of answering
        token = REQUEST_ID.set(record.request_id)
        sender = _Sender(send, record)
        try:
            writer = self._writer
            if writer is not None and writer.behind and scope["path"] not in _QUIET:
                await writer.caught_up()
            await self._app(scope, receive, sender)
        except ClientGoneError:
            record.outcome = record.outcome or Outcome.CLIENT_LEFT
        except Exception as raised:
            error = self._translate(raised, scope)
            if isinstance(error, InferdError):
                record.error = error
            if record.status:
                record.outcome = record.outcome or Outcome.FAILED
                raise
            rendered = render(error, record.request_id, operator=self._operator)
            if not isinstance(error, CLIENT_ERRORS) and rendered.status >= _SERVER_ERROR:
                _log.exception("The request failed for a reason that its client is not told.")
            await respond(sender, rendered)
        finally:
            self._finish(record, scope)
            REQUEST_ID.reset(token)

    def _translate(self, error: Exception, scope: Scope) -> Exception:
        """Starlette's own refusals as ours; the one error of a group alone."""
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if not isinstance(error, HTTPException):
            return error
        method, path = scope["method"], shown(scope["path"])
        if error.status_code == _NOT_FOUND:
            return UnknownUrl(f"Unknown request URL: {method} {path}. Check the path and base URL.")
        if error.status_code == _NOT_ALLOWED:
            allow = (error.headers or {}).get("Allow", "")
            methods = self._allowed(scope) or tuple(allow.split(", "))
            return MethodNotAllowed(
                f"Not allowed to {method} on {path}. Allowed: {', '.join(methods)}.", allow=methods
            )
        if error.status_code < _SERVER_ERROR:
            return InvalidBody(f"The request cannot be read: {shown(error.detail)}.")
        return error

    def _allowed(self, scope: Scope) -> tuple[str, ...]:
        """Methods of every route of the path: the router names those of the first one only."""
        methods: set[str] = set()
        for route in self._routes:
            if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
                methods |= route.methods or set()
        return tuple(sorted(methods))

    def _finish(self, record: RequestRecord, scope: Scope) -> None:
        route = getattr(scope.get("route"), "path", NO_ROUTE)
        status = record.status or STATUS_CLIENT_GONE
        self._count(route, scope["method"], status)
        if self._refused is not None:
            self._refused(record, route, status)
        level = logging.DEBUG if route in _QUIET else logging.INFO
        if _access_log.isEnabledFor(level):
            line(_access_log, level, "request", _fields(record, scope, route, status))


class _Sender:
    """The server's `send`, with our headers on the start of the response."""

    __slots__ = ("_record", "_send")

    def __init__(self, send: Send, record: RequestRecord) -> None:
        self._send = send
        self._record = record

    def __call__(self, message: Message) -> Awaitable[None]:
        # Not a coroutine function: what follows the start goes to the server's as it is.
        if not self._record.status:
            self._start(message)
        return self._send(message)

    def _start(self, message: Message) -> None:
        record = self._record
        record.status = message["status"]
        headers = list(message.get("headers", ()))
        if header(headers, b"x-request-id") is None:
            headers.append((b"x-request-id", record.request_id.encode("ascii")))
        elapsed_ms = round((monotonic() - record.arrived) * 1_000)
        headers.append((b"openai-processing-ms", str(elapsed_ms).encode("ascii")))
        headers.append(_VERSION)
        if record.team is not None and record.key_id is not None:
            headers.append((b"openai-organization", record.team.encode("ascii")))
            headers.append((b"openai-project", record.key_id.encode("ascii")))
        headers += record.more_headers
        if record.headers is not None:
            headers += [(name.encode(), value.encode()) for name, value in record.headers().items()]
        message["headers"] = headers


def _fields(record: RequestRecord, scope: Scope, route: str, status: int) -> dict[str, object]:
    """The access log's line, without what is unknown."""
    headers = scope["headers"]
    fields: dict[str, object] = {
        "route": route,
        "method": scope["method"],
        "status": status,
        "duration_s": round(monotonic() - record.arrived, 6),
        "outcome": record.outcome or _outcome(status),
        "team": record.team,
        "key_id": record.key_id,
        "model": record.model,
        "stream": record.stream,
        "priority": record.priority,
        "error_code": record.error.code if record.error else None,
        "user_hash": record.user_hash,
        "retry_count": _retry_count(header(headers, b"x-stainless-retry-count")),
        "client_request_id": _client_request_id(header(headers, b"x-client-request-id")),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _outcome(status: int) -> Outcome:
    if status == STATUS_CLIENT_GONE:
        return Outcome.CLIENT_LEFT
    if status < _CLIENT_ERROR:
        return Outcome.COMPLETED
    return Outcome.REFUSED if status < _SERVER_ERROR else Outcome.FAILED


def _retry_count(value: bytes | None) -> int | None:
    """How often the SDK has sent this request before; anything odd is left out."""
    if value is None or not value.isdigit() or len(value) > RETRY_COUNT_DIGITS_MAX:
        return None
    return int(value)


def _client_request_id(value: bytes | None) -> str | None:
    if value is None or len(value) > CLIENT_REQUEST_ID_CHARS_MAX or not value.isascii():
        return None
    return value.decode("ascii")
