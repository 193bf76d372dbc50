"""What is known of one HTTP request while it is served: filled by handlers, logged at its end.

Made by the middleware and kept in the scope. Holds neither prompt text nor keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from starlette.types import Scope

from inferd.errors import InferdError
from inferd.inference import Outcome

SCOPE_KEY = "inferd.request"


@dataclass(slots=True)
class RequestRecord:
    """One line of the access log in the making."""

    request_id: str
    arrived: float
    """Loop time."""
    status: int = 0
    """0 until a response has started."""
    team: str | None = None
    key_id: str | None = None
    model: str | None = None
    stream: bool | None = None
    priority: str | None = None
    outcome: Outcome | None = None
    """Unset: told by the status."""
    error: InferdError | None = None
    """Why the request was refused or failed; the middleware sets it for what reaches it."""
    user_hash: str | None = None
    more_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Sent with the response, whatever it is."""
    headers: Callable[[], Mapping[str, str]] | None = None
    """Asked for when the response starts, whatever it is: what the team has left in its buckets."""


def record_of(scope: Scope) -> RequestRecord:
    """The record of the request that this scope belongs to."""
    record = scope[SCOPE_KEY]
    assert isinstance(record, RequestRecord), "set by the middleware before any handler runs"
    return record
