"""Keeps the text of the requests of teams that want it kept; of all others it never sees any.

Owns what waits to be written, which is bounded: what comes while the disk is behind is not kept,
and counted, and no answer ever waits for it. Text goes to `storage.recordings` and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from inferd.api.disconnect import SCOPE_KEY, client_of
from inferd.clock import monotonic, utc_now_us
from inferd.storage import recordings
from inferd.storage.recordings import Kept, Recorded

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from inferd.api.disconnect import Client
    from inferd.config.recording import Recording
    from inferd.config.schema import Team
    from inferd.metrics import Metrics

TEXT_BYTES_MAX: Final = 1_048_576
"""Kept of one request's body, and of its answer."""
WAITING_BYTES_MAX: Final = 67_108_864
TRIM_S: Final = 60.0

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)


class _Text:
    """Bytes on their way, as far as they are kept."""

    __slots__ = ("cut", "parts", "size")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.cut = False

    def take(self, data: bytes) -> None:
        kept = data[: TEXT_BYTES_MAX - self.size]
        self.cut |= len(kept) < len(data)
        if kept:
            self.parts.append(bytes(kept))
            self.size += len(kept)

    def text(self) -> str:
        return b"".join(self.parts).decode("utf-8", errors="replace")


class _HeardClient:
    """A client whose chunks, which go past `send`, are heard too."""

    __slots__ = ("_client", "_text")

    def __init__(self, client: Client, text: _Text) -> None:
        self._client = client
        self._text = text

    @property
    def gone(self) -> bool:
        return self._client.gone

    @property
    def unread_bytes(self) -> int:
        return self._client.unread_bytes

    @property
    def ready(self) -> bool:
        return self._client.ready

    def tell_when_gone(self, told: Callable[[], object] | None) -> None:
        self._client.tell_when_gone(told)

    def write(self, data: bytes) -> None:
        self._text.take(data)
        self._client.write(data)

    def write_chunk(self, chunk: bytes) -> None:
        self._text.take(chunk[chunk.find(b"\r\n") + 2 : -2])
        self._client.write_chunk(chunk)

    def abort(self) -> None:
        self._client.abort()


class Heard:
    """One request of a team that wants it kept: listens at both ends of the endpoint."""

    def __init__(self, team: str, request_id: str, path: str) -> None:
        self.team = team
        self._request_id = request_id
        self._path = path
        self._at_us = utc_now_us()
        self._request = _Text()
        self._answer = _Text()

    def listen(self, scope: Scope, receive: Receive, send: Send) -> tuple[Scope, Receive, Send]:
        """The three of the request, in whose place these are used from now on."""

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                self._request.take(message.get("body", b""))
            return message

        def sent(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.body":
                self._answer.take(message.get("body", b""))
            return send(message)

        heard = _HeardClient(client_of(scope), self._answer)
        return {**scope, SCOPE_KEY: heard}, received, sent

    @property
    def size(self) -> int:
        return self._request.size + self._answer.size

    def recorded(self) -> Recorded:
        return Recorded(
            request_id=self._request_id,
            team=self.team,
            at_us=self._at_us,
            path=self._path,
            request=self._request.text(),
            answer=self._answer.text(),
            cut=self._request.cut or self._answer.cut,
        )


class Recorder:
    """`run` is the service that writes and deletes."""

    def __init__(
        self, folder: Path, metrics: Metrics, settings_of: Callable[[str], Recording | None]
    ) -> None:
        """`settings_of` tells what a team wants, by name; None: that nothing is kept."""
        self._folder = folder
        self._metrics = metrics
        self._settings_of = settings_of
        self._waiting: deque[Heard] = deque()
        self._waiting_bytes = 0
        self._going: list[Heard] = []
        """On its way to the disk; whoever writes it takes it out."""
        self._woken = asyncio.Event()
        # One at a time and in order: what was on its way to the disk is there before it is deleted.
        self._disk = ThreadPoolExecutor(1, "recordings")

    def begin(self, team: Team, request_id: str, path: str) -> Heard | None:
        """Who listens to a request; None: nobody does."""
        return None if team.recording is None else Heard(team.name, request_id, path)

    def keep(self, heard: Heard) -> None:
        """It has ended. Never waits."""
        if self._waiting_bytes + heard.size > WAITING_BYTES_MAX:
            self._metrics.recordings[heard.team, "dropped"].inc()
            return
        self._waiting.append(heard)
        self._waiting_bytes += heard.size
        self._woken.set()

    async def run(self) -> None:
        """Write what comes, delete what is old. What still waits at the end is written then."""
        trimmed = monotonic() - TRIM_S
        try:
            while True:
                if monotonic() - trimmed >= TRIM_S:
                    trimmed = monotonic()
                    await self._on_disk(self._trim)
                try:
                    async with asyncio.timeout(TRIM_S):
                        await self._woken.wait()
                except TimeoutError:
                    continue
                self._woken.clear()
                self._going = self._taken()
                await self._on_disk(partial(self._write, self._going))
        finally:
            self._disk.shutdown()  # blocks, as the write: the loop has nothing else to do then
            self._write([*self._going, *self._taken()])

    async def find(self, team: str, request_id: str, around_us: int) -> Recorded | None:
        """The text of one request, if it was kept."""
        look = partial(recordings.find, self._folder, team, request_id, around_us)
        return await asyncio.to_thread(look)

    async def kept(self) -> list[Kept]:
        """How much is there, by team."""
        return await asyncio.to_thread(recordings.kept, self._folder)

    async def delete(self, team: str) -> int:
        """Delete all text of a team; how many bytes. What still waits is not kept either."""
        self._waiting = deque(one for one in self._waiting if one.team != team)
        self._waiting_bytes = sum(one.size for one in self._waiting)
        return await self._on_disk(partial(recordings.delete, self._folder, team))

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

    def _taken(self) -> list[Heard]:
        taken = list(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        return taken

    def _write(self, going: list[Heard]) -> None:
        """In a thread, but for the end."""
        heard = list(going)
        going.clear()
        if not heard:
            return
        try:
            recordings.append(self._folder, [one.recorded() for one in heard])
        except OSError as error:
            outcome = "dropped"
            _log.warning("text that teams want kept cannot be written: %s", error.strerror)
        else:
            outcome = "kept"
        for one in heard:
            self._metrics.recordings[one.team, outcome].inc()

    def _trim(self) -> None:
        now_us = utc_now_us()
        for one in recordings.kept(self._folder):
            wanted = self._settings_of(one.team)
            try:
                if wanted is None:
                    recordings.delete(self._folder, one.team)
                else:
                    days, size = wanted.kept_days, wanted.bytes_max
                    recordings.trim(self._folder, one.team, days, size, now_us)
            except OSError as error:
                _log.warning("kept text of %s cannot be deleted: %s", one.team, error.strerror)
