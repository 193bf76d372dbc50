"""The command line's side of files and batches: upload, create, follow, download.

Owns the HTTP session of one command. Every failure is an `ApiError` that can be shown as it is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from inferd.cli.chat_client import CONNECT_S, OK, SILENCE_S_MAX, ApiError, asked, refused, told
from inferd.clock import monotonic
from inferd.errors import StartError

Batch = dict[str, Any]

LOOK_S = 1.0
"""Between two looks at a batch that runs."""
AWAY_S_MAX = 120.0
"""Nobody answers for longer: then it is no restart."""
CHECKED_LOOK_S = 0.2
CHECKED_S_MAX = 15.0
"""Other batches of large files may be checked before it."""
PAGE = 100
READ_BYTES = 262_144
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


class BatchClient:
    """Calls of one base URL with one key; made by `connected`."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self._base_url = base_url

    async def upload(self, path: Path, sent: Callable[[int], None]) -> str:
        """Upload the file for a batch; its id. `sent` is told the bytes of each part."""

        async def parts() -> AsyncIterator[bytes]:
            with await asyncio.to_thread(path.open, "rb") as file:
                while data := await asyncio.to_thread(file.read, READ_BYTES):
                    yield data
                    sent(len(data))

        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", parts(), filename=path.name)
        answer = await self._ask("POST", "files", data=form)
        return str(answer["id"])

    async def create(self, body: dict[str, Any], idempotency_key: str | None = None) -> Batch:
        headers = {} if idempotency_key is None else {"idempotency-key": idempotency_key}
        return await self._ask("POST", "batches", json=body, headers=headers)

    async def get(self, batch_id: str) -> Batch:
        return await self._ask("GET", f"batches/{quote(batch_id, safe='')}")

    async def cancel(self, batch_id: str) -> Batch:
        return await self._ask("POST", f"batches/{quote(batch_id, safe='')}/cancel")

    async def newest(self, limit: int) -> list[Batch]:
        """The team's batches, newest first."""
        found: list[Batch] = []
        after = ""
        while len(found) < limit:
            page = await self._ask("GET", f"batches?limit={min(PAGE, limit - len(found))}{after}")
            found += page["data"]
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        return found

    async def follow(self, batch_id: str) -> AsyncIterator[Batch]:
        """The batch as it is, again and again, until it has ended.

        An inferd that starts anew is waited for: batches outlive it.
        """
        seen_at: float | None = None
        while True:
            try:
                batch = await self.get(batch_id)
            except ApiError:
                if seen_at is None or monotonic() - seen_at > AWAY_S_MAX:
                    raise
            else:
                seen_at = monotonic()
                yield batch
                if batch["status"] in ENDED:
                    return
            await asyncio.sleep(LOOK_S)

    async def checked(self, batch_id: str) -> Batch:
        """A new batch once its file is checked, or as it is after `CHECKED_S_MAX`."""
        ends = monotonic() + CHECKED_S_MAX
        while True:
            batch = await self.get(batch_id)
            if batch["status"] != "validating" or monotonic() >= ends:
                return batch
            await asyncio.sleep(CHECKED_LOOK_S)

    async def download(self, file_id: str, path: Path) -> int:
        """Write a file of results to `path`, whole or not at all. Its bytes."""
        size = 0
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with told(self._base_url), await asyncio.to_thread(unfinished.open, "wb") as file:
                url = f"{self._base_url}/files/{quote(file_id, safe='')}/content"
                async with self._session.get(url) as response:
                    if response.status != OK:
                        raise refused(response, await response.read())
                    async for data in response.content.iter_chunked(READ_BYTES):
                        size += await asyncio.to_thread(file.write, data)
            await asyncio.to_thread(unfinished.replace, path)
        except OSError as error:
            raise StartError(f"{path}: {error.strerror or error}") from error
        finally:
            await asyncio.to_thread(unfinished.unlink, missing_ok=True)
        return size

    async def _ask(self, method: str, path: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
        return await asked(self._session, method, self._base_url, path, **more)


@asynccontextmanager
async def connected(base_url: str, key: str) -> AsyncIterator[BatchClient]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S_MAX)
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        yield BatchClient(session, base_url)
