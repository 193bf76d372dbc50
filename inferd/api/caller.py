"""Who asks, for handlers of what no worker answers: checks the key and notes it in the record."""

from __future__ import annotations

from starlette.requests import Request

from inferd.api.access import Access
from inferd.api.auth import authenticate
from inferd.api.request_record import record_of
from inferd.clock import utc_now_us
from inferd.inference import Caller


def caller_of(http: Request, access: Access) -> Caller:
    """The caller.

    Raises:
        AuthError: no key, or none of ours.
    """
    caller = authenticate(http.scope["headers"], access.keys, utc_now_us())
    record = record_of(http.scope)
    record.team, record.key_id = caller.team, caller.key_id
    return caller
