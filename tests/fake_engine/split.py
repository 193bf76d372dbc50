"""Prefill and decode on two fake engines: they meet in a room, on the prefill side's own port.

The decode side names its room and waits for a line; the prefill side waits for that guest,
computes the prompt, and lets it go on. A room nobody comes to is waited in until it is aborted; a
lost partner is told of after a while, as by the real engine.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.fake_engine.refusal import Refusal

if TYPE_CHECKING:
    from tests.fake_engine.options import Options
    from tests.fake_engine.wire import Exchange

NO_PARTNER = "2.2.2.2"
LOST_AFTER_S = 15.0


class Split:
    """One side's half of the rooms."""

    def __init__(self, options: Options, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._options = options
        self._guests: dict[int, asyncio.Future[asyncio.StreamWriter]] = {}
        self._waiting: dict[str, asyncio.Task[None]] = {}
        self._aborted: set[str] = set()

    @property
    def mode(self) -> str:
        return self._options.disaggregation_mode

    async def listen(self) -> asyncio.Server | None:
        """The prefill side's port for guests."""
        if self.mode != "prefill":
            return None
        port = self._options.bootstrap_port
        return await asyncio.start_server(self._guest, self._options.host, port)

    def abort(self, rid: str) -> bool:
        """End a wait in a room."""
        task = self._waiting.get(rid)
        if task is not None:
            self._aborted.add(rid)
            task.cancel()
        return task is not None

    async def meet(self, rid: str, room: int | None, host: str, port: int) -> None:
        """Until both sides are there; on the decode side until the prompt is computed too.

        Raises Refusal.
        """
        if room is None:
            raise Refusal(
                400,
                "Invalid request: Disaggregated request received without bootstrap room id. "
                f"req.rid='{rid}'",
            )
        if host == NO_PARTNER:
            return
        wait = self._wait_for_guest(room) if self.mode == "prefill" else self._visit(port, room)
        task = self._waiting[rid] = self._tasks.create_task(wait)
        try:
            await task
        except (asyncio.CancelledError, OSError) as error:
            if isinstance(error, asyncio.CancelledError) and rid not in self._aborted:
                raise
            raise self._failed(rid, room, port) from None
        finally:
            del self._waiting[rid]
            self._aborted.discard(rid)

    async def gone(self, exchange: Exchange, rid: str) -> None:
        """A client that leaves ends its wait."""
        await exchange.gone.wait()
        self.abort(rid)

    def computed(self, room: int) -> None:
        """The prompt is computed: the guest goes on."""
        guest = self._guests.pop(room, None)
        if guest is not None and guest.done():
            guest.result().write(b"computed\n")
            guest.result().close()

    def _failed(self, rid: str, room: int, port: int) -> Refusal:
        why = "Aborted by AbortReq."
        if rid not in self._aborted:
            why = (
                "Lost connection with prefill instance "
                f"(bootstrap_addr: {self._options.host}:{port})"
            )
        message = (
            f"Decode transfer failed for request rank=0 decode_req.req.rid='{rid}' "
            f"decode_req.req.bootstrap_room={room} with exception "
            f"KVTransferError(bootstrap_room={room}): {why}"
        )
        return Refusal(500, message, "500")

    def _room(self, room: int) -> asyncio.Future[asyncio.StreamWriter]:
        return self._guests.setdefault(room, asyncio.get_running_loop().create_future())

    async def _wait_for_guest(self, room: int) -> None:
        await asyncio.shield(self._room(room))

    async def _guest(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ValueError, OSError):
            waiting = self._room(int(await reader.readline()))
            if not waiting.done():
                waiting.set_result(writer)

    async def _visit(self, port: int, room: int) -> None:
        """Raises ConnectionError, after a while, if the partner is lost."""
        try:
            reader, writer = await asyncio.open_connection(self._options.host, port)
        except OSError:  # nobody listens: the real one keeps asking
            await asyncio.Event().wait()
            raise
        try:
            writer.write(f"{room}\n".encode())
            if await reader.readline() != b"computed\n":
                await asyncio.sleep(self._options.scaled(LOST_AFTER_S))
                raise ConnectionError(room)
        finally:
            writer.close()
