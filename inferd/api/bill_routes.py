"""The bill's part of the admin API: usage, one request's life, the balance, the audit log."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Protocol

from starlette.requests import Request
from starlette.routing import Route

from inferd.api import bill_admin
from inferd.api.admin import json_route
from inferd.api.fields import shown
from inferd.api.reconcile import reconcile
from inferd.errors import InvalidField, NotFound
from inferd.storage import audit, usage
from inferd.storage.rollup import HourFilter

if TYPE_CHECKING:
    from inferd.api.recorder import Recorder
    from inferd.api.refusals import Refusals
    from inferd.config.schema import Config
    from inferd.fleet import Fleet
    from inferd.storage.database import Database

_SECONDS: Final = re.compile(r"[0-9]{1,11}")
_MICROSECONDS: Final = 1_000_000
ACTIONS_DEFAULT: Final = 100

Answer = dict[str, Any]


class Node(Protocol):
    """The composition root, as far as the bill needs it."""

    db: Database
    fleet: Fleet
    refusals: Refusals
    recorder: Recorder

    @property
    def config(self) -> Config: ...


class BillApi:
    """The handlers. `routes` is the table of paths. Times are seconds since 1970, UTC."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> list[Route]:
        return [
            json_route("GET", "/admin/v1/usage", self._usage),
            json_route("GET", "/admin/v1/requests/{id}", self._request),
            # No GET: who looks at text is written down, as whoever changes something is.
            json_route("POST", "/admin/v1/requests/{id}/text", self._text),
            json_route("GET", "/admin/v1/recordings", self._recordings),
            json_route("DELETE", "/admin/v1/recordings/{team}", self._delete_recordings),
            json_route("GET", "/admin/v1/reconcile", self._reconcile),
            json_route("GET", "/admin/v1/audit", self._audit),
        ]

    async def _usage(self, http: Request) -> Answer:
        asked = http.query_params
        where = HourFilter(
            since_us=_time(http, "since"),
            until_us=_time(http, "until"),
            **{
                name: asked.get(name) for name in ("team", "key_id", "model", "version", "priority")
            },
        )
        by = bill_admin.dimensions(asked.get("by", "team"))
        currency = self._node.config.billing.currency
        return await bill_admin.usage_of(self._node.db, where, by, currency)

    async def _request(self, http: Request) -> Answer:
        request_id = http.path_params["id"]
        try:
            return await bill_admin.life_of(self._node.db, request_id)
        except NotFound:
            refused = self._node.refusals.find(request_id)
            if refused is None:
                raise
            return refused

    async def _text(self, http: Request) -> Answer:
        row = await usage.find(self._node.db, http.path_params["id"])
        found = None
        if row is not None:
            found = await self._node.recorder.find(row.team, row.request_id, row.ts_us)
        if found is None:
            raise NotFound(
                "There is no text of this request: only that of teams with a section"
                " [teams.recording] is kept, for its kept_days."
            )
        return {"object": "request.text", **asdict(found)}

    async def _recordings(self, _: Request) -> Answer:
        found = await self._node.recorder.kept()
        return {"object": "list", "data": [{"object": "recording", **asdict(one)} for one in found]}

    async def _delete_recordings(self, http: Request) -> Answer:
        team = http.path_params["team"]
        if all(one.team != team for one in await self._node.recorder.kept()):
            raise NotFound(f"No text of a team {shown(team)!r} is kept.")
        size = await self._node.recorder.delete(team)
        return {"object": "recording.deleted", "team": team, "bytes": size}

    async def _reconcile(self, _: Request) -> Answer:
        return await reconcile(self._node)

    async def _audit(self, http: Request) -> Answer:
        since_us = _time(http, "since") or 0
        limit = _number(http, "limit", ACTIONS_DEFAULT)
        found = await audit.actions(self._node.db, since_us, limit)
        return {"object": "list", "data": [bill_admin.action_answer(one) for one in found]}


def _time(http: Request, name: str) -> int | None:
    seconds = _number(http, name, None)
    return None if seconds is None else seconds * _MICROSECONDS


def _number(http: Request, name: str, default: Any) -> Any:  # noqa: ANN401 - a number, or no bound
    text = http.query_params.get(name)
    if text is None:
        return default
    if not _SECONDS.fullmatch(text):
        raise InvalidField(f"Invalid '{name}': got '{shown(text)}', not a number.", param=name)
    return int(text)
