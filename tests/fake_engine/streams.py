"""One streamed answer: frames out, and every stream fault on the way."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from tests.fake_engine.faults import Fault
from tests.fake_engine.shapes import DONE, error_event
from tests.fake_engine.wire import Exchange


class StreamOut:
    """Sends frames; the HTTP head goes out with the first, as the real engine does.

    `broken` says that a fault ended the stream: later frames are dropped.
    """

    def __init__(
        self, exchange: Exchange, plan: dict[str, Fault], tasks: asyncio.TaskGroup
    ) -> None:
        self._exchange = exchange
        self._plan = plan
        self._tasks = tasks
        self._sent = 0
        self._held: list[bytes] = []
        self._dribble: asyncio.Queue[bytes | None] | None = None
        self.broken = False
        self.silent = False
        self.on_broken: Callable[[], None] | None = None

    def frame(self, data: bytes) -> None:
        """Send one event (ending in a blank line)."""
        if not self._over():
            self._trip()
        if not self._over():
            self._send(data)
            self._sent += 1

    def _over(self) -> bool:
        return self.broken or self.silent

    def done(self) -> None:
        """Send what ends a good stream."""
        self.frame(DONE)
        if not self._over():
            self._finish()

    def _finish(self) -> None:
        self._flush()
        if self._dribble is not None:
            self._dribble.put_nowait(None)
        else:
            self._exchange.end_stream()

    def _due(self, kind: str) -> Fault | None:
        fault = self._plan.get(kind)
        return fault if fault is not None and self._sent >= fault.count("after") else None

    def _trip(self) -> None:
        """Let a fault whose time has come happen."""
        if self._due("empty"):
            self._break()
            self._begin()
            self._exchange.end_stream()
        elif self._due("not_http"):
            self._break()
            self._exchange.write_raw(b"\x00\xff\x13 this is not HTTP \r\n\r\n")
            self._exchange.close()
        elif self._due("crash"):
            self._flush()
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._due("reset"):
            self._break()
            self._exchange.reset()
        elif fault := self._due("cut"):
            self._flush()
            self._break()
            self._begin()
            if fault.flag("clean"):
                self._exchange.end_stream()
            else:
                self._exchange.close()
        elif self._due("silent"):
            self._flush()
            self.silent = True
            if self.on_broken is not None:
                self.on_broken()
        elif fault := self._due("error_frame"):
            code, kind = fault.count("code", 500), fault.text("type", "INTERNAL_SERVER_ERROR")
            self._send(error_event(code, fault.text("message", "CUDA error"), kind) + DONE)
            self._break()
            self._finish()
        else:
            self._insert()

    def _insert(self) -> None:
        """Faults that add a frame and let the stream go on; each once."""
        if fault := self._due("garbage"):
            del self._plan["garbage"]
            self._send(
                b"data: " + fault.text("data", '{"id": "x", "choices": [').encode() + b"\n\n"
            )
        if fault := self._due("huge"):
            del self._plan["huge"]
            text = b"x" * fault.count("bytes", 1 << 20)
            self._send(b'data: {"id":"huge","choices":[{"index":0,"delta":{"content":"')
            self._send(text + b'"},"logprobs":null,"finish_reason":null}]}\n\n')

    def _break(self) -> None:
        self.broken = True
        if self.on_broken is not None:
            self.on_broken()

    def _begin(self) -> None:
        if self._exchange.streaming:
            return
        self._exchange.begin_stream()
        if fault := self._plan.get("dribble"):
            self._dribble = asyncio.Queue()
            self._tasks.create_task(self._drip(self._dribble, fault.number("seconds")))

    def _send(self, data: bytes) -> None:
        self._begin()
        if "crlf" in self._plan:
            data = data.replace(b"\n", b"\r\n")
        batch = self._plan.get("batch")
        if batch is None:
            self._write(data)
            return
        self._held.append(data)
        if len(self._held) >= batch.count("frames", 2):
            self._flush()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, []
            self._write(b"".join(held))

    def _write(self, data: bytes) -> None:
        if self._dribble is not None:
            self._dribble.put_nowait(data)
        else:
            self._exchange.write(data)

    async def _drip(self, source: asyncio.Queue[bytes | None], gap_s: float) -> None:
        while (data := await source.get()) is not None:
            framed = b"%x\r\n%b\r\n" % (len(data), data)
            for position in range(len(framed)):
                self._exchange.write_raw(framed[position : position + 1])
                await asyncio.sleep(gap_s)
            if self._exchange.gone.is_set():
                return
        self._exchange.end_stream()
