"""Writes down every action of the admin listener: whatever may change something, once it has ended.

A layer around the admin's router, inside the check of the key: who has no key does nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferd.api.headers import header
from inferd.api.request_record import record_of
from inferd.clock import utc_now_us
from inferd.storage.audit import Action

ACTOR_HEADER: Final = b"x-inferd-actor"
"""Who a client says to be acting for: the one key is the only thing that is checked."""
TARGET_KEY: Final = "inferd.target"
"""Where a handler names what it made, in the scope, if the path does not."""
ACTOR_CHARS_MAX: Final = 64
_LOOKS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_FAILED: Final = 500


class Audit:
    """ASGI middleware; `note` takes each action and must not block."""

    def __init__(self, app: ASGIApp, note: Callable[[Action], object]) -> None:
        self._app = app
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _LOOKS:
            await self._app(scope, receive, send)
            return
        status = _FAILED

        def told(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            return send(message)

        try:
            await self._app(scope, receive, told)
        except Exception as error:
            status = getattr(error, "status", _FAILED)
            raise
        finally:
            self._note(_action(scope, status))


def _action(scope: Scope, status: int) -> Action:
    route = getattr(scope.get("route"), "path", "unknown")
    named = scope.get(TARGET_KEY) or " ".join(map(str, scope.get("path_params", {}).values()))
    actor = (header(scope["headers"], ACTOR_HEADER) or b"").decode("latin-1")
    return Action(
        ts_us=utc_now_us(),
        actor="".join(filter(str.isprintable, actor))[:ACTOR_CHARS_MAX] or "admin",
        action=f"{scope['method']} {route}",
        target=named[:256],
        status=status,
        request_id=record_of(scope).request_id,
    )
