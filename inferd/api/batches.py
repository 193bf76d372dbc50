"""/v1/batches: create, list, look at, cancel. Batches of another team are as unknown as any id.

What is wrong with a batch's file is told by the batch, not by its creation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from inferd.api.access import Access
from inferd.api.caller import caller_of
from inferd.api.fields import (
    Rule,
    missing,
    not_supported_value,
    shown,
    text,
    unknown,
)
from inferd.api.file_fields import life_s
from inferd.api.idempotency import idempotency_of
from inferd.api.parsed import not_an_object
from inferd.api.read_body import read_body
from inferd.api.sampling import metadata
from inferd.batch.jobs import JobState, new_batch_id, window_s
from inferd.batch.lines import ENDPOINTS
from inferd.batch.runner import Runner
from inferd.clock import utc_now_us
from inferd.errors import InvalidBody, InvalidField, NotFound
from inferd.inference import Caller
from inferd.quota.prices import amount_text
from inferd.storage import batches
from inferd.storage.batches import BatchRow
from inferd.storage.database import Database

BODY_BYTES_MAX: Final = 65_536
BODY_TIMEOUT_S: Final = 10.0
ID_CHARS_MAX: Final = 128
LIMIT_DEFAULT: Final = 20
LIMIT_MAX: Final = 100
PATH: Final = "/v1/batches"


def _endpoint(value: object, path: str) -> str:
    endpoint = text(ID_CHARS_MAX)(value, path)
    if endpoint not in ENDPOINTS:
        raise not_supported_value(path, endpoint, ENDPOINTS)
    return endpoint


def _window(value: object, path: str) -> str:
    window = text(ID_CHARS_MAX)(value, path)
    window_s(window)
    return window


FIELDS: Final[dict[str, Rule[Any]]] = {
    "input_file_id": text(ID_CHARS_MAX),
    "endpoint": Rule(_endpoint, {"enum": list(ENDPOINTS)}),
    "completion_window": Rule(
        _window, {"type": "string", "pattern": "^[0-9]{1,6}[smhdw]$", "examples": ["24h"]}
    ),
    "metadata": metadata,
    "output_expires_after": life_s,
}
REQUIRED: Final = ("input_file_id", "endpoint", "completion_window")


class BatchApi:
    """The handlers. `routes` is the table of paths."""

    def __init__(
        self, access: Access, runner: Runner, db: Database, currency: Callable[[], str]
    ) -> None:
        self._access = access
        self._currency = currency
        self._runner = runner
        self._db = db

    def routes(self) -> list[Route]:
        return [
            Route(PATH, self.create, methods=["POST"]),
            Route(PATH, self.list, methods=["GET"]),
            Route(f"{PATH}/{{id}}", self.get, methods=["GET"]),
            Route(f"{PATH}/{{id}}/cancel", self.cancel, methods=["POST"]),
        ]

    async def create(self, http: Request) -> Response:
        """Take a batch; its file is looked at afterwards.

        Raises:
            RequestError: naming the parameter and what is allowed.
            QueueFull, Conflict: see `Runner.create`.
        """
        caller = self._caller(http)
        raw = await read_body(
            http.receive,
            http.scope["headers"],
            bytes_max=BODY_BYTES_MAX,
            timeout_s=BODY_TIMEOUT_S,
        )
        given = _fields(raw)
        now_us = utc_now_us()
        window = given["completion_window"]
        row = BatchRow(
            id=new_batch_id(),
            team=caller.team,
            key_id=caller.key_id,
            endpoint=given["endpoint"],
            input_file_id=given["input_file_id"],
            completion_window=window,
            metadata=given.get("metadata"),
            output_expires_s=given.get("output_expires_after"),
            status=JobState.VALIDATING.value,
            created_us=now_us,
            expires_us=now_us + window_s(window) * 1_000_000,
        )
        once = idempotency_of(http, caller.team, PATH)
        claim = once.claim(given) if once is not None else None
        return self._answer(await self._runner.create(row, claim))

    async def list(self, http: Request) -> Response:
        """The team's batches, newest first."""
        caller = self._caller(http)
        for name in http.query_params:
            if name not in {"limit", "after"}:
                raise unknown(shown(name))
        limit = _limit(http)
        after = http.query_params.get("after")
        if after is not None:
            await self._find(caller, after)
        found = await batches.newest(self._db, caller.team, after, limit + 1)
        currency = self._currency()
        data = [shape(row, currency) for row in found[:limit]]
        return _json(
            {
                "object": "list",
                "data": data,
                "first_id": data[0]["id"] if data else None,
                "last_id": data[-1]["id"] if data else None,
                "has_more": len(found) > limit,
            }
        )

    async def get(self, http: Request) -> Response:
        """One batch. Raises NotFound."""
        return self._answer(await self._find(self._caller(http), http.path_params["id"]))

    async def cancel(self, http: Request) -> Response:
        """Begin to cancel. Raises NotFound, or Conflict for one that has ended."""
        row = await self._find(self._caller(http), http.path_params["id"])
        return self._answer(await self._runner.cancel(row))

    def _answer(self, row: BatchRow) -> Response:
        return _json(shape(row, self._currency()))

    def _caller(self, http: Request) -> Caller:
        caller = caller_of(http, self._access)
        self._access.team(caller)
        return caller

    async def _find(self, caller: Caller, batch_id: str) -> BatchRow:
        row = None
        if len(batch_id) <= ID_CHARS_MAX:
            row = await batches.get(self._db, caller.team, batch_id)
        if row is None:
            raise NotFound(f"No batch found with id '{shown(batch_id)}'.", param="batch_id")
        return row


def shape(row: BatchRow, currency: str) -> dict[str, Any]:
    """A batch as clients see it. `inferd` holds what is ours: when it should be done, its cost."""
    ends_us = row.estimated_end_us if not row.is_finished else None
    errors = None if row.errors is None else {"object": "list", "data": row.errors}
    return {
        "id": row.id,
        "object": "batch",
        "endpoint": row.endpoint,
        "model": row.model,
        "errors": errors,
        "input_file_id": row.input_file_id,
        "completion_window": row.completion_window,
        "status": row.status,
        "output_file_id": row.output_file_id if row.is_finished else None,
        "error_file_id": row.error_file_id if row.is_finished else None,
        "created_at": _whole(row.created_us),
        "in_progress_at": _whole(row.in_progress_us),
        "expires_at": _whole(row.expires_us),
        "finalizing_at": _whole(row.finalizing_us),
        "completed_at": _whole(row.completed_us),
        "failed_at": _whole(row.failed_us),
        "expired_at": _whole(row.expired_us),
        "cancelling_at": _whole(row.cancelling_us),
        "cancelled_at": _whole(row.cancelled_us),
        "request_counts": {
            "total": row.total,
            "completed": row.completed,
            "failed": row.failed,
        },
        "usage": {
            "input_tokens": row.prompt_tokens,
            "input_tokens_details": {"cached_tokens": row.cached_tokens},
            "output_tokens": row.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": row.reasoning_tokens},
            "total_tokens": row.prompt_tokens + row.completion_tokens,
        },
        "metadata": row.metadata,
        "inferd": {
            "estimated_completion_at": _whole(ends_us),
            "in_time": None if ends_us is None else ends_us <= row.expires_us,
            "cost": amount_text(row.cost_pico),
            "currency": currency,
        },
    }


def _fields(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidBody(f"We could not parse the JSON body of your request: {error}.") from None
    if not isinstance(body, dict):
        raise not_an_object(body)
    given: dict[str, object] = body
    for name in given:
        if name not in FIELDS:
            raise unknown(shown(name))
    for name in REQUIRED:
        if given.get(name) is None:
            raise missing(name)
    return {
        name: rule(given[name], name)
        for name, rule in FIELDS.items()
        if given.get(name) is not None
    }


def _limit(http: Request) -> int:
    value = http.query_params.get("limit", str(LIMIT_DEFAULT))
    if not (value.isascii() and value.isdigit() and 1 <= int(value[:9]) <= LIMIT_MAX):
        raise InvalidField(
            f"Invalid 'limit': got '{shown(value)}'. Expected a number from 1 to {LIMIT_MAX}.",
            param="limit",
        )
    return int(value)


def _whole(time_us: int | None) -> int | None:
    return None if time_us is None else time_us // 1_000_000


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
