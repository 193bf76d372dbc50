"""The newest answers that were refused before they had a row in the ledger: no key, a wrong body.

In memory and bounded: `why` can then say something of every request that was answered a moment ago.
No message is kept, for messages quote what was sent.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from inferd.api.request_record import RequestRecord
from inferd.clock import monotonic, utc_now_us

REFUSALS_KEPT: Final = 2_000
_CLIENT_ERROR: Final = 400


class Refusals:
    """By request id, oldest out first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def note(self, record: RequestRecord, route: str, status: int) -> None:
        """An answer has ended; those that were no errors are not kept."""
        if status < _CLIENT_ERROR:
            return
        error = record.error
        duration_s = monotonic() - record.arrived
        self._kept[record.request_id] = {
            "object": "refusal",
            "request_id": record.request_id,
            "ts_us": utc_now_us() - int(duration_s * 1_000_000),
            "endpoint": route,
            "status": status,
            "team": record.team,
            "key_id": record.key_id,
            "pool": record.model,
            "duration_s": duration_s,
            "error": None if error is None else type(error).__name__,
            "error_code": None if error is None else error.code,
            "param": None if error is None else error.param,
        }
        if len(self._kept) > REFUSALS_KEPT:
            self._kept.popitem(last=False)

    def find(self, request_id: str) -> dict[str, Any] | None:
        return self._kept.get(request_id)

    def newest(self, limit: int) -> list[dict[str, Any]]:
        """Newest first."""
        return [self._kept[key] for key in list(reversed(self._kept))[:limit]]
