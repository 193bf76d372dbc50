"""A gateway's view of an engine, for contract tests: streams by frames, and what they add up to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.contract.raw_http import RawAnswer, encode_request, exchange
from tests.fakes.engines import EngineProcess

IDLE_S = 30.0
_POLL_S = 0.03


@dataclass(slots=True)
class Transcript:
    """What one streamed answer said."""

    events: list[Any] = field(default_factory=list)
    done: bool = False

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [event for event in self.events if "choices" in event]

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def texts(self) -> list[str]:
        deltas = [chunk["choices"][0]["delta"] for chunk in self.chunks if chunk["choices"]]
        return [delta["content"] for delta in deltas if delta.get("content")]

    @property
    def finish(self) -> str | None:
        reasons = [
            chunk["choices"][0]["finish_reason"] for chunk in self.chunks if chunk["choices"]
        ]
        return next((reason for reason in reversed(reasons) if reason), None)

    @property
    def usage(self) -> dict[str, Any]:
        last = self.events[-1]
        assert last["choices"] == []
        usage = last["usage"]
        assert isinstance(usage, dict)
        return usage

    @property
    def error(self) -> dict[str, Any] | None:
        return next((event["error"] for event in self.events if "error" in event), None)


def transcript(body: str) -> Transcript:
    """Read a whole event stream."""
    told = Transcript()
    for event in body.split("\n\n"):
        told.done = told.done or event == "data: [DONE]"
        if event.startswith("data: {"):
            told.events.append(orjson.loads(event.removeprefix("data: ")))
    return told


class OpenStream:
    """A streamed answer that is still being read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.head = ""

    async def started(self) -> None:
        """Read the head: with a real engine it comes with the first token."""
        self.head = (await self._reader.readuntil(b"\r\n\r\n")).decode()

    async def frame(self) -> bytes | None:
        """The next chunk of the body; None at its end. Raises IncompleteReadError when cut."""
        size = int((await self._reader.readuntil(b"\r\n")).strip(), 16)
        data = await self._reader.readexactly(size + 2)
        return data[:-2] if size else None

    async def rest(self) -> Transcript:
        parts = []
        while (frame := await self.frame()) is not None:
            parts.append(frame)
        return transcript(b"".join(parts).decode())

    def leave(self) -> None:
        """Close the connection, as a client does that lost interest."""
        self._writer.close()


@dataclass(frozen=True, slots=True)
class Client:
    """Requests to one engine, on new connections."""

    engine: EngineProcess

    def chat(self, content: str = "Tell me a story", **more: Any) -> dict[str, Any]:
        """A chat body; `more` overrides."""
        return {
            "model": self.engine.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            **more,
        }

    def holding(self, content: str = "Hold this slot", **more: Any) -> dict[str, Any]:
        """A body that keeps its slot for many seconds unless it is aborted."""
        return self.chat(content, **{"max_tokens": 1_900, "ignore_eos": True, **more})

    async def get(self, path: str) -> RawAnswer:
        return await exchange(self.engine.port, "GET", path, headers=self.engine.headers)

    async def post(self, path: str, payload: Any) -> RawAnswer:
        body = payload if isinstance(payload, bytes) else orjson.dumps(payload)
        return await exchange(self.engine.port, "POST", path, body, self.engine.headers)

    async def ask(self, payload: Any) -> RawAnswer:
        """POST a chat request and read its whole answer."""
        return await self.post("/v1/chat/completions", payload)

    async def told(self, payload: dict[str, Any]) -> Transcript:
        """A streamed chat with its usage, read to its end."""
        body = {**payload, "stream": True, "stream_options": {"include_usage": True}}
        answer = await self.ask(body)
        assert answer.status == 200, answer.text
        return transcript(answer.text)

    @asynccontextmanager
    async def stream(
        self, payload: dict[str, Any], *, streamed: bool = True
    ) -> AsyncIterator[OpenStream]:
        """Send a chat; nothing is read yet."""
        body = payload
        if streamed:
            body = {**payload, "stream": True, "stream_options": {"include_usage": True}}
        reader, writer = await asyncio.open_connection("127.0.0.1", self.engine.port)
        try:
            data = orjson.dumps(body)
            writer.write(encode_request("POST", "/v1/chat/completions", data, self.engine.headers))
            yield OpenStream(reader, writer)
        finally:
            writer.close()

    async def abort(self, **body: Any) -> None:
        assert (await self.post("/abort_request", body)).status == 200

    async def load(self) -> dict[str, Any]:
        answer = orjson.loads((await self.get("/v1/loads")).body)
        load = answer["loads"][0]
        assert isinstance(load, dict)
        return load

    async def until(self, running: int, waiting: int = 0, limit_s: float = IDLE_S) -> float:
        """Wait until the engine says so in its load report; the seconds it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(limit_s):
            while True:
                load = await self.load()
                if (load["num_running_reqs"], load["num_waiting_reqs"]) == (running, waiting):
                    return loop.time() - began
                await asyncio.sleep(_POLL_S)

    async def until_not_ready(self, limit_s: float) -> None:
        """Wait until /ready says 503."""
        async with asyncio.timeout(limit_s):
            while True:
                if (await self.get("/ready")).status == 503:
                    return
                await asyncio.sleep(_POLL_S)

    async def counter(self, name: str) -> float:
        """Sum of a counter of /metrics over its labels; 0 if it is not there yet."""
        text = (await self.get("/metrics")).text
        rows = [line for line in text.splitlines() if line.startswith(f"sglang:{name}{{")]
        return sum(float(row.rpartition(" ")[2]) for row in rows)


@asynccontextmanager
async def idle_after(engine: EngineProcess) -> AsyncIterator[Client]:
    """A client; whatever the test leaves running is aborted before the next one starts."""
    client = Client(engine)
    try:
        yield client
    finally:
        await client.abort(abort_all=True)
        await client.until(running=0)
