"""/v1/uploads: a file that arrives in parts, each sent on its own, in any order and side by side.

Owns nothing. A part's bytes are in the store before its row is; the file is made of the parts as
they lie there, nothing is copied. What an upload leaves when it ends is deleted.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import Route

from inferd.api import file_fields
from inferd.api.access import Access
from inferd.api.admin import body_fields, json_route
from inferd.api.caller import caller_of
from inferd.api.fields import as_array, integer, missing, shown, text, unknown
from inferd.api.file_transfer import expiry_us, transferring
from inferd.api.idempotency import idempotency_of
from inferd.api.multipart import FileBegins, read_form
from inferd.batch.first_line import FirstLine
from inferd.batch.objects import FileStore, handing_over
from inferd.clock import utc_now_us
from inferd.config.schema import Server
from inferd.errors import InvalidField, RequestError
from inferd.storage import files, idempotency, uploads
from inferd.storage.files import FileRow, new_file_id
from inferd.storage.idempotency import AlreadyMade
from inferd.storage.uploads import PARTS_MAX, Ended, PartRow, UploadRow, UploadStatus

PATH: Final = "/v1/uploads"
LIFE_S: Final = 3_600
PART_BYTES_MAX: Final = 67_108_864
BYTES_MAX: Final = 8_589_934_592

_part_id: Final = text(64)


def _part_ids(value: object, path: str) -> list[str]:
    given = as_array(value, path, PARTS_MAX)
    return [_part_id(one, f"{path}[{at}]") for at, one in enumerate(given)]


def _md5(value: object, path: str) -> str:
    given = text(32)(value, path).lower()
    if not re.fullmatch(r"[0-9a-f]{32}", given):
        raise InvalidField(f"Invalid '{path}': expected 32 hexadecimal digits.", param=path)
    return given


CREATE: Final = {
    "bytes": integer(1, BYTES_MAX),
    "filename": file_fields.filename,
    "mime_type": file_fields.mime_type,
    "purpose": file_fields.purpose,
    "expires_after": file_fields.life_s,
}
COMPLETE: Final = {"part_ids": _part_ids, "md5": _md5}
REQUIRED: Final = ("bytes", "filename", "mime_type", "purpose")


class UploadsApi:
    """The handlers. `routes` is the table of paths."""

    def __init__(self, access: Access, store: FileStore, server: Server) -> None:
        self._access = access
        self._store = store
        self._server = server

    def routes(self) -> list[Route]:
        return [
            json_route("POST", PATH, self._create),
            json_route("POST", f"{PATH}/{{id}}/parts", self._add_part),
            json_route("POST", f"{PATH}/{{id}}/complete", self._complete),
            json_route("POST", f"{PATH}/{{id}}/cancel", self._cancel),
        ]

    async def _create(self, http: Request) -> dict[str, Any]:
        team = self._team(http)
        fields = await body_fields(http, CREATE)
        for name in REQUIRED:
            if name not in fields:
                raise missing(name)
        integer(1, self._store.limits.bytes_max)(fields["bytes"], "bytes")
        file_fields.check_taken(fields["purpose"], self._store.limits.purposes)
        if fields["purpose"] == file_fields.BATCH:
            file_fields.check_extension(fields["filename"])
        self._store.check_room(team, fields["bytes"])
        now_us = utc_now_us()
        upload = UploadRow(
            id=uploads.new_upload_id(),
            team=team,
            filename=fields["filename"],
            purpose=fields["purpose"],
            bytes=fields["bytes"],
            created_us=now_us,
            expires_us=expiry_us(now_us, LIFE_S),
            file_life_s=fields.get("expires_after"),
        )
        once = idempotency_of(http, team, PATH)
        also = (
            None
            if once is None
            else partial(
                idempotency.take, claim=once.claim(fields), object_id=upload.id, now_us=now_us
            )
        )
        begun = partial(self._store.count, team, number=1)
        try:
            await uploads.create(self._store.db, upload, also, lambda _: begun())
        except AlreadyMade as made:
            upload = await uploads.get(self._store.db, team, made.object_id)
            return _body(upload, now_us, await self._made(upload))
        return _body(upload, now_us)

    async def _add_part(self, http: Request) -> dict[str, Any]:
        upload = await self._upload(http)
        uploads.check_pending(upload, utc_now_us())
        bytes_max = min(PART_BYTES_MAX, upload.bytes)
        async with (
            transferring(self._store, "upload"),
            self._store.incoming(upload.team, prefix="part", bytes_max=bytes_max) as incoming,
        ):
            begun = False
            async for event in read_form(
                http.receive,
                http.scope["headers"],
                bytes_max=bytes_max,
                silence_s=self._server.body_timeout_s,
            ):
                if isinstance(event, bytes):
                    await incoming.write(event)
                    self._store.metrics.file_transfer_bytes["upload"].inc(len(event))
                elif event.name != "data":
                    raise unknown(shown(event.name))
                elif begun or not isinstance(event, FileBegins):
                    raise InvalidField(
                        "Invalid 'data': expected one part with a filename.", param="data"
                    )
                begun = True
            if not begun:
                raise missing("data")
            await incoming.finish()
            part = PartRow(
                id=incoming.blob,
                upload_id=upload.id,
                bytes=incoming.size,
                created_us=utc_now_us(),
            )
            with handing_over(incoming):
                arrived = partial(self._store.count, upload.team, size=part.bytes)
                await uploads.add_part(self._store.db, upload.team, part, lambda _: arrived())
        return {
            "id": part.id,
            "object": "upload.part",
            "created_at": part.created_us // 1_000_000,
            "upload_id": upload.id,
        }

    async def _complete(self, http: Request) -> dict[str, Any]:
        upload = await self._upload(http)
        fields = await body_fields(http, COMPLETE)
        if "part_ids" not in fields:
            raise missing("part_ids")
        now_us = utc_now_us()
        if (made := await self._made(upload)) is not None:
            return _body(upload, now_us, made)
        uploads.check_pending(upload, now_us)
        there = await uploads.parts(self._store.db, upload.id)
        part_ids = fields["part_ids"]
        uploads.check_parts(part_ids, {one.id: one.bytes for one in there.values()})
        file = FileRow(
            id=new_file_id(now_us),
            team=upload.team,
            filename=upload.filename,
            purpose=upload.purpose,
            bytes=sum(there[one].bytes for one in part_ids),
            blobs=tuple((one, there[one].bytes) for one in part_ids),
            created_us=now_us,
            expires_us=expiry_us(now_us, upload.file_life_s or self._store.limits.life_s),
        )
        if file.bytes != upload.bytes:
            raise RequestError(
                f"The parts have {file.bytes} bytes together, but the Upload was announced with "
                f"{upload.bytes}. Name all of its parts, each once.",
                param="part_ids",
            )
        await self._check_content(file, fields.get("md5"))
        try:
            ended = await uploads.complete(self._store.db, file, upload.id, part_ids, self._left)
        except RequestError:
            upload = await self._upload(http)
            if (made := await self._made(upload)) is None:
                raise
            return _body(upload, now_us, made)  # another call was quicker
        await self._store.discard(ended.blobs)
        return _body(await self._upload(http), now_us, file)

    async def _made(self, upload: UploadRow) -> FileRow | None:
        """The file, if the upload is complete: SDKs ask again when an answer was lost."""
        if upload.status is not UploadStatus.COMPLETED or upload.file_id is None:
            return None
        return await files.get(self._store.db, upload.team, upload.file_id)

    async def _check_content(self, file: FileRow, md5: str | None) -> None:
        """Raises InvalidBody, InvalidField."""
        first = FirstLine()
        digest = hashlib.md5(usedforsecurity=False)
        async with aclosing(self._store.stream(file.blobs, 0, file.bytes)) as pieces:
            async for data in pieces:
                first.take(data)
                if md5 is None and first.decided:
                    break
                await asyncio.to_thread(digest.update, data)
        first.end()
        if file.purpose == file_fields.BATCH:
            file_fields.check_first_line(first)
        if md5 is not None and digest.hexdigest() != md5:
            raise InvalidField(
                f"Invalid 'md5': the file's is {digest.hexdigest()}. Send the parts again.",
                param="md5",
            )

    async def _cancel(self, http: Request) -> dict[str, Any]:
        upload = await self._upload(http)
        await body_fields(http, {})
        now_us = utc_now_us()
        if upload.status is not UploadStatus.CANCELLED:
            ended = await uploads.cancel(
                self._store.db, upload.team, upload.id, now_us, self._cancelled
            )
            await self._store.discard(ended.blobs)
            upload = await self._upload(http)
        return _body(upload, now_us)

    async def _upload(self, http: Request) -> UploadRow:
        """The upload that the path names. Raises NotFound."""
        return await uploads.get(self._store.db, self._team(http), http.path_params["id"])

    def _left(self, ended: Ended) -> None:
        self._store.count(ended.team, size=-sum(size for _, size in ended.blobs))

    def _cancelled(self, ended: Ended) -> None:
        self._store.count(ended.team, size=-sum(size for _, size in ended.blobs), number=-1)

    def _team(self, http: Request) -> str:
        return self._access.team(caller_of(http, self._access)).name


def _body(upload: UploadRow, now_us: int, file: FileRow | None = None) -> dict[str, Any]:
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": upload.bytes,
        "created_at": upload.created_us // 1_000_000,
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": upload.status_at(now_us),
        "expires_at": upload.expires_us // 1_000_000,
        "file": None if file is None else file_fields.file_body(file),
    }
