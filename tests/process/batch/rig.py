"""A runner of batches with its real parts, over scripted workers: on sockets' time, without any.

Owns a state folder that outlives it, so that a test can end one runner in the middle and start the
next one on what it left.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from prometheus_client import CollectorRegistry

from inferd.api.batch_lines import BatchLines
from inferd.api.whole_answer import WholeAnswer
from inferd.batch.jobs import JobState, new_batch_id
from inferd.batch.line import LineCall
from inferd.batch.runner import Runner, Surroundings
from inferd.clock import utc_now_us
from inferd.config.batches import Batches
from inferd.errors import InferdError
from inferd.inference import Endpoint, Priority
from inferd.metrics import Metrics
from inferd.routing.batch_speed import BatchSpeed
from inferd.storage import batches, usage
from inferd.storage.batches import BatchRow
from inferd.storage.database import Cursor, Database
from inferd.storage.idempotency import Claim
from inferd.storage.usage import UsageFilter, UsageRow
from inferd.upstream.answer import chat_answer
from tests.fakes.running_database import running
from tests.paths.data_path import DataPath

CHAT = "/v1/chat/completions"
TEAM = "search"
LIVES_S = 30.0


@dataclass(frozen=True, slots=True)
class LocalFile:
    id: str


class LocalInput:
    """A file of `LocalFiles`, which deletes none."""

    def __init__(self, files: LocalFiles, path: Path) -> None:
        self.purpose = path.suffix[1:]
        self._files = files
        self._path = path

    async def read(self) -> AsyncIterator[bytes]:
        if self._files.broken is not None:
            raise self._files.broken
        yield self._path.read_bytes()

    def let_go(self) -> None:
        """Nothing is held."""


class LocalFiles:
    """The store of files as batches see it: a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broken: Exception | None = None
        self.broken_for_results: Exception | None = None
        folder.mkdir(exist_ok=True)

    def put(self, data: bytes, purpose: str = "batch") -> str:
        file_id = f"file-{secrets.token_hex(8)}"
        (self.folder / f"{file_id}.{purpose}").write_bytes(data)
        return file_id

    async def keep(self, team: str, file_id: str) -> LocalInput | None:
        del team
        found = list(self.folder.glob(f"{file_id}.*"))
        return LocalInput(self, found[0]) if found else None

    async def add_from_path(
        self,
        team: str,
        path: Path,
        filename: str,
        purpose: str,
        expires_us: int | None,
        also: Callable[[Cursor, Any], object] | None = None,
    ) -> LocalFile:
        del team, filename, expires_us
        if broken := self.broken or self.broken_for_results:
            raise broken
        data = await asyncio.to_thread(path.read_bytes)
        file = LocalFile(self.put(data, purpose))
        assert also is not None
        await self.db.write(lambda cursor: also(cursor, file))
        return file

    db: Database


@dataclass
class Rig:
    """One life of a runner."""

    folder: Path
    path: DataPath
    db: Database
    files: LocalFiles
    runner: Runner
    service: asyncio.Task[None]
    registry: CollectorRegistry
    settings: list[Batches] = field(default_factory=lambda: [Batches()])
    calls: Counter[str] = field(default_factory=Counter)
    """Tries of lines, by their messages' text."""

    async def create(
        self,
        data: bytes,
        *,
        window_s: float = 86_400.0,
        endpoint: str = CHAT,
        claim: Claim | None = None,
        **more: Any,
    ) -> BatchRow:
        now_us = utc_now_us()
        row = BatchRow(
            id=new_batch_id(),
            team=TEAM,
            key_id="key",
            endpoint=endpoint,
            input_file_id=more.pop("input_file_id", None) or self.files.put(data),
            completion_window="24h",
            status=JobState.VALIDATING.value,
            created_us=now_us,
            expires_us=now_us + round(window_s * 1e6),
            **more,
        )
        return await self.runner.create(row, claim)

    async def stop(self) -> None:
        """As a kill does it: at once, and nothing that was not on disk is written any more."""
        self.service.cancel()
        await asyncio.wait([self.service])
        await self.db.flush()

    async def until_answering(self) -> None:
        """Until lines are with a worker."""
        async with asyncio.timeout(LIVES_S):
            while not self.path.dispatch.in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def row(self, batch_id: str) -> BatchRow:
        row = await batches.get(self.db, TEAM, batch_id)
        assert row is not None
        return row

    async def until(self, batch_id: str, condition: Callable[[BatchRow], object]) -> BatchRow:
        async with asyncio.timeout(LIVES_S):
            while not condition(row := await self.row(batch_id)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return row

    async def ended(self, batch_id: str) -> BatchRow:
        return await self.until(batch_id, lambda row: row.is_finished)

    def lines_of(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        (path,) = self.files.folder.glob(f"{file_id}.*")
        data = path.read_bytes()
        assert data.endswith(b"\n")
        return [orjson.loads(line) for line in data.splitlines()]

    async def ledger(self) -> list[UsageRow]:
        await self.db.flush()
        return await usage.rows(self.db, UsageFilter(), 1_000)

    async def results(self, row: BatchRow) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Output and error lines; each line once, and each that ran once in the ledger."""
        output, errors = self.lines_of(row.output_file_id), self.lines_of(row.error_file_id)
        ids = [line["custom_id"] for line in output + errors]
        assert len(set(ids)) == len(ids) == row.total == row.completed + row.failed
        assert (len(output), len(errors)) == (row.completed, row.failed)
        ran = {line["id"] for line in output + errors if line["response"] is not None}
        billed = {one.request_id: one for one in await self.ledger()}
        assert ran <= set(billed)
        mine = [one for one in billed.values() if row.id.removeprefix("batch_") in one.request_id]
        assert row.prompt_tokens == sum(one.prompt_tokens for one in mine)
        assert row.completion_tokens == sum(one.completion_tokens for one in mine)
        for line in output:
            told, bill = line["response"]["body"]["usage"], billed[line["id"]]
            assert told["prompt_tokens"] == bill.prompt_tokens
            assert told["completion_tokens"] == bill.completion_tokens
            assert bill.priority == Priority.BATCH
        return output, errors


def line(number: int, text: str = "Hello", **changes: Any) -> dict[str, Any]:
    body = {"model": "chat", "messages": [{"role": "user", "content": text}]}
    custom_id = f"id-{number}"
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | changes


def encoded(*lines: dict[str, Any]) -> bytes:
    return b"".join(orjson.dumps(one) + b"\n" for one in lines)


def lines(count: int) -> bytes:
    return encoded(*(line(number, f"number {number}") for number in range(count)))


Refuses = Callable[[str, int], InferdError | None]
"""Given a line's text and its try, from 1: what is raised instead of asking a worker."""


@asynccontextmanager
async def rig(
    folder: Path,
    *,
    refuses: Refuses = lambda _text, _try: None,
    limits: Batches | None = None,
    token_s: float = 0.0,
    slots: int = 4,
    try_s: float = 20.0,
    speed: BatchSpeed | None = None,
) -> AsyncIterator[Rig]:
    """A runner on `folder`, until the scope is left; then its lines in flight are cut."""
    path = DataPath("w-1", slots=slots)
    path.workers["w-1"].token_s = token_s
    path.workers["w-1"].first_token_s = 0.0
    calls: Counter[str] = Counter()
    settings = [limits or Batches(cancel_grace_s=0.2)]

    async def answer(call: LineCall) -> bytes:
        body = orjson.loads(call.body)
        text = body["messages"][-1]["content"]
        calls[text] += 1
        if (error := refuses(text, calls[text])) is not None:
            raise error
        request = path.request(
            request_id=call.request_id,
            stream=False,
            priority=Priority.BATCH,
            deadline=call.deadline,
            endpoint=Endpoint(call.endpoint),
            body=body,
        )
        sink = WholeAnswer(chat_answer)
        call.placed()
        await path.dispatch.run(request, sink, call.record)
        return sink.body

    files = LocalFiles(folder / "files")
    async with running(Database.open(folder / "inferd.db")) as db, _working(path):
        files.db = db
        around = Surroundings(
            files=files,
            answer=answer,
            render=BatchLines.render,
            bills=path.ledger,
            settings=lambda: settings[0],
            line_bytes_max=65_536,
            try_s=try_s,
            models_of=lambda _: {"chat": "chat"},
            speed_of=lambda _, tokens: speed or path.scheduler.batch_speed(tokens),
        )
        registry = CollectorRegistry()
        runner = Runner(db, folder / "batches", Metrics(registry), around)
        await runner.restore()
        async with asyncio.TaskGroup() as group:
            service = group.create_task(runner.run())
            try:
                yield Rig(folder, path, db, files, runner, service, registry, settings, calls)
            finally:
                service.cancel()


@asynccontextmanager
async def _working(path: DataPath) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as services:
        client = services.create_task(path.workers["w-1"].client.run())
        try:
            yield
        finally:
            client.cancel()
