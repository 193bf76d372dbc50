"""/v1/files: upload, list, look at, download and delete a team's own files.

Owns nothing: bytes go to `batch.objects.FileStore` as they come. A file of another team is as
unknown as one that never was. What is refused or breaks off leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from inferd.api import file_fields
from inferd.api.access import Access
from inferd.api.admin import json_route
from inferd.api.caller import caller_of
from inferd.api.fields import integer, missing, one_of, shown, unknown
from inferd.api.file_content import FileContent
from inferd.api.file_transfer import expiry_us, transferring
from inferd.api.idempotency import Idempotency, idempotency_of
from inferd.api.multipart import Field, FileBegins, read_form
from inferd.batch.first_line import FirstLine
from inferd.batch.objects import FileStore, Incoming
from inferd.clock import utc_now_us
from inferd.config.schema import Server
from inferd.errors import InvalidBody, InvalidField, NotFound
from inferd.storage import files, idempotency
from inferd.storage.database import Cursor, Row
from inferd.storage.files import FileRow
from inferd.storage.idempotency import AlreadyMade

PATH: Final = "/v1/files"
LIMIT_MAX: Final = 10_000
ORDERS: Final = ("asc", "desc")

_DIGITS_MAX: Final = 18
_limit: Final = integer(1, LIMIT_MAX)
_order: Final = one_of(*ORDERS)
_purpose: Final = one_of(*file_fields.PURPOSES)


@dataclass(slots=True)
class _Form:
    """What an upload has said so far, in whatever order."""

    kept: Collection[str]
    """Purposes that are taken besides batch."""
    filename: str | None = None
    purpose: str | None = None
    expires_after: dict[str, object] = field(default_factory=dict)
    first: FirstLine = field(default_factory=FirstLine)

    def take(self, event: Field | FileBegins) -> None:
        """Raises InvalidField, UnknownParameter."""
        if isinstance(event, FileBegins):
            if event.name != "file":
                raise unknown(shown(event.name))
            if self.filename is not None:
                raise InvalidField(
                    "Invalid 'file': expected one file, but got several.", param="file"
                )
            self.filename = file_fields.filename(event.filename, "file")
        elif event.name == "purpose":
            self.purpose = file_fields.purpose(event.value, "purpose")
            file_fields.check_taken(self.purpose, self.kept)
        elif event.name == "expires_after[anchor]":
            self.expires_after["anchor"] = event.value
        elif event.name == "expires_after[seconds]":
            self.expires_after["seconds"] = whole_number(event.value)
        elif event.name == "file":
            raise InvalidField("Invalid 'file': the part needs a filename.", param="file")
        else:
            raise unknown(shown(event.name))
        self.check()

    def check(self) -> None:
        """What can be said already, before the rest of the file has come. Raises InvalidBody."""
        if self.purpose == file_fields.BATCH and self.filename is not None:
            file_fields.check_extension(self.filename)
            file_fields.check_first_line(self.first)

    def end(self) -> tuple[str, str, int | None]:
        """Name, purpose and life in seconds. Raises InvalidField, InvalidBody."""
        if self.filename is None:
            raise missing("file")
        if self.purpose is None:
            raise missing("purpose")
        self.first.end()
        self.check()
        after = self.expires_after
        life_s = file_fields.life_s(after, "expires_after") if after else None
        return self.filename, self.purpose, life_s


class FilesApi:
    """The handlers. `routes` is the table of paths."""

    def __init__(self, access: Access, store: FileStore, server: Server) -> None:
        self._access = access
        self._store = store
        self._server = server
        self._content = FileContent(self._file, store, server.stall_s)

    def routes(self) -> list[Route]:
        return [
            json_route("POST", PATH, self._create),
            Route(PATH, self._list, methods=["GET"]),
            json_route("GET", f"{PATH}/{{id}}", self._get),
            json_route("DELETE", f"{PATH}/{{id}}", self._delete),
            Route(f"{PATH}/{{id}}/content", self._content, methods=["GET"]),
        ]

    async def _create(self, http: Request) -> dict[str, Any]:
        team = self._team(http)
        self._store.check_room(team)
        once = idempotency_of(http, team, PATH)
        async with transferring(self._store, "upload"):
            bytes_max = self._store.limits.bytes_max
            async with self._store.incoming(team, bytes_max=bytes_max) as incoming:
                filename, purpose, life_s = await self._receive(http, incoming, bytes_max, once)
                now_us = utc_now_us()
                expires_us = expiry_us(now_us, life_s or self._store.limits.life_s)
                claim = once.claim(filename, purpose, life_s) if once else None

                def also(cursor: Cursor, file: FileRow) -> None:
                    if claim is not None:
                        idempotency.take(cursor, claim, file.id, now_us)

                try:
                    file = await self._store.add(
                        incoming, filename, purpose, expires_us, also, now_us
                    )
                except AlreadyMade as made:
                    file = await self._named(team, made.object_id)
        return file_fields.file_body(file)

    async def _receive(
        self, http: Request, incoming: Incoming, bytes_max: int, once: Idempotency | None
    ) -> tuple[str, str, int | None]:
        form = _Form(self._store.limits.purposes)
        async for event in read_form(
            http.receive,
            http.scope["headers"],
            bytes_max=bytes_max,
            silence_s=self._server.body_timeout_s,
        ):
            if isinstance(event, bytes):
                form.first.take(event)
                form.check()
                await incoming.write(event)
                if once is not None:
                    once.content(event)
                self._store.metrics.file_transfer_bytes["upload"].inc(len(event))
            else:
                form.take(event)
        told = form.end()
        if not incoming.size:
            raise InvalidBody("The file is empty.", param="file")
        return told

    async def _list(self, http: Request) -> Response:
        team = self._team(http)
        asked = dict(http.query_params)
        for name in asked:
            if name not in {"purpose", "limit", "order", "after"}:
                raise unknown(shown(name))
        limit = _limit(whole_number(asked.get("limit", str(LIMIT_MAX))), "limit")
        after = asked.get("after")
        if after is not None and not files.is_file_id(after):
            raise InvalidField(
                f"Invalid 'after': '{shown(after)}' is not a file's id.", param="after"
            )
        purpose = asked.get("purpose")
        rows = await files.page(
            self._store.db,
            team,
            purpose=None if purpose is None else _purpose(purpose, "purpose"),
            after=after,
            order=_order(asked.get("order", "desc"), "order"),
            limit=limit + 1,
        )
        # Ten thousand files take longer to write down than anybody else should wait.
        body = await asyncio.to_thread(_page, rows, limit)
        return Response(body, media_type="application/json")

    async def _get(self, http: Request) -> dict[str, Any]:
        return file_fields.file_body(await self._file(http))

    async def _delete(self, http: Request) -> dict[str, Any]:
        team, file_id = self._team(http), http.path_params["id"]
        if not await self._store.delete(team, file_id):
            raise no_such_file(file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    async def _file(self, http: Request) -> FileRow:
        """The file that the path names. Raises NotFound."""
        return await self._named(self._team(http), http.path_params["id"])

    async def _named(self, team: str, file_id: str) -> FileRow:
        found = await files.get(self._store.db, team, file_id)
        if found is None:
            raise no_such_file(file_id)
        return found

    def _team(self, http: Request) -> str:
        caller = caller_of(http, self._access)
        return self._access.team(caller).name


def no_such_file(file_id: str) -> NotFound:
    return NotFound(f"No such File object: {shown(file_id)}", param="id")


def whole_number(given: str) -> int | str:
    """A number from a form or a query, or what stood there instead, for the check to refuse."""
    return (
        int(given) if given.isascii() and given.isdigit() and len(given) <= _DIGITS_MAX else given
    )


def _page(rows: list[Row], limit: int) -> bytes:
    """The list as JSON; `rows` has one more than `limit` if there are more."""
    data = [file_fields.file_body(files.file_of(row)) for row in rows[:limit]]
    return orjson.dumps(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": len(rows) > limit,
        }
    )
