"""One line of a batch, from its bytes to its result: served as often as is fair, billed once.

Waiting for room, for a worker or for others is no attempt; a lost worker is one for each placement,
so a line that kills workers ends in the error file soon. The row of the last try is the bill.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import orjson

from inferd.batch.job import Job, Line, LineResult
from inferd.batch.jobs import line_id
from inferd.clock import monotonic, utc_now_us
from inferd.errors import (
    AuthError,
    DeadlineExceeded,
    InferdError,
    LimitError,
    NoWorker,
    Preempted,
    RequestError,
    ShuttingDown,
    WorkerFull,
    WorkerRejected,
)
from inferd.inference import Endpoint, Outcome, Priority
from inferd.storage.unbilled import UnbilledAttempt
from inferd.storage.usage import UsageRow

WAITS: Final = (LimitError, NoWorker, Preempted, ShuttingDown, WorkerFull)
"""Nobody has tried yet: wait and ask again."""
FINAL: Final = (RequestError, AuthError, WorkerRejected)
"""Asking again would change nothing."""
PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 30.0
BILL_S_MAX: Final = 3.0
"""An answer that was cut short tells its usage up to a second later."""
OK: Final = 200
CUT: Final = "cut"
"""Why a try is not billed: nobody waited for it any more."""
AGAIN: Final = "placed_again"
"""Another try followed it."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LineCall:
    """One try of a line. `placed` is called when a worker has it, `record` with its ledger row."""

    team: str
    key_id: str
    endpoint: Endpoint
    request_id: str
    body: bytes
    deadline: float
    placed: Callable[[], None]
    record: Callable[[UsageRow], None]


class Bills(Protocol):
    """Of each row that a try left, one is said: it is in the ledger, or it is not billed."""

    def billed(self, row: UsageRow) -> None: ...

    def unbilled(self, attempt: UnbilledAttempt) -> None: ...


Answer = Callable[[LineCall], Awaitable[bytes]]
"""The whole answer's body. Raises InferdError."""
Render = Callable[[BaseException, str], tuple[int, bytes]]
"""Status and body of an error, as a client gets it."""


class WindowOverError(Exception):
    """The batch's window has ended: the line stays as it is."""


@dataclass(frozen=True, slots=True)
class LineLimits:
    """`attempts_max` placements that failed; seconds for one try."""

    attempts_max: int
    try_s: float


class LineServer:
    """Serves lines through `answer`. Holds nothing of a line beyond its call."""

    def __init__(
        self, answer: Answer, render: Render, limits: Callable[[], LineLimits], bills: Bills
    ) -> None:
        self._answer = answer
        self._render = render
        self._limits = limits
        self._bills = bills

    async def serve(
        self, job: Job, line: Line, window_ends: float, placed: Callable[[], None]
    ) -> LineResult:
        """The line's result. `window_ends` is loop time.

        Raises:
            WindowOverError: it was not served in time.
            OSError: it cannot be read.
        """
        raw = await asyncio.to_thread(job.spool.read_line, line.offset, line.length)
        request = orjson.loads(raw)
        one = _OneLine(self, job, line, request["custom_id"], orjson.dumps(request["body"]))
        del raw, request
        with one:
            while True:
                result = await one.try_once(window_ends, placed)
                if result is not None:
                    return result

    def limits(self) -> LineLimits:
        return self._limits()

    async def answer(self, call: LineCall) -> bytes:
        return await self._answer(call)

    def render(self, error: BaseException, request_id: str) -> tuple[int, bytes]:
        return self._render(error, request_id)

    def not_billed(self, row: UsageRow, reason: str) -> None:
        self._bills.unbilled(
            UnbilledAttempt(
                request_id=row.request_id,
                ts_us=row.ts_us,
                worker=row.worker or "",
                reason=reason,
                prompt_tokens=row.prompt_tokens,
                cached_tokens=row.cached_tokens,
                completion_tokens=row.completion_tokens,
                estimated=row.estimated,
                choices=row.choices,
            )
        )


class _OneLine:
    """The tries of one line. A scope: a bill that its result does not take is nobody's."""

    def __init__(
        self, server: LineServer, job: Job, line: Line, custom_id: str, body: bytes
    ) -> None:
        self._server = server
        self._job = job
        self._line = line
        self._custom_id = custom_id
        self._body = body
        self._request_id = line_id(job.id, line.number)
        self._attempts = 0
        self._pauses = 0
        self._row: UsageRow | None = None
        self._billed = asyncio.Event()
        self._placed = False
        self._over = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._over = True
        if self._row is not None:
            self._server.not_billed(self._row, CUT)

    async def try_once(self, window_ends: float, placed: Callable[[], None]) -> LineResult | None:
        """A result, or None after a pause if it should be tried again."""
        billed = self._next_bill()
        now = monotonic()
        if now >= window_ends:
            raise WindowOverError

        def has_worker() -> None:
            self._placed = True
            placed()

        limits = self._server.limits()
        call = LineCall(
            team=self._job.row.team,
            key_id=self._job.row.key_id,
            endpoint=Endpoint(self._job.row.endpoint),
            request_id=self._request_id,
            body=self._body,
            deadline=min(now + limits.try_s, window_ends),
            placed=has_worker,
            record=partial(self._take_bill, billed),
        )
        try:
            body = await self._server.answer(call)
        except WAITS as error:
            await self._pause(error.retry_after_s, window_ends)
            return None
        except FINAL as error:
            return await self._failed(error)
        except DeadlineExceeded as error:
            return await self._too_late(error, window_ends, limits)
        except Exception as error:  # noqa: BLE001 - ends in the error file, as a 500
            if not isinstance(error, InferdError):
                _log.exception("unexpected error in line %d of %s", self._line.number, self._job.id)
            return await self._attempt_failed(error, window_ends, limits)
        return self._result(OK, body, failed=False, row=self._taken())

    def _next_bill(self) -> asyncio.Event:
        if self._row is not None:
            self._server.not_billed(self._row, AGAIN)
        self._row, self._billed, self._placed = None, asyncio.Event(), False
        return self._billed

    def _take_bill(self, billed: asyncio.Event, row: UsageRow) -> None:
        if self._over or billed is not self._billed:
            self._server.not_billed(row, CUT if self._over else AGAIN)
        else:
            self._row = row
            billed.set()

    def _taken(self) -> UsageRow:
        """The last try's bill, which its result takes along."""
        row, self._row = self._row, None
        assert row is not None, "an answer that is whole is billed"
        return row

    async def _too_late(
        self, error: DeadlineExceeded, window_ends: float, limits: LineLimits
    ) -> LineResult | None:
        if monotonic() >= window_ends:
            raise WindowOverError from error
        row = await self._bill()
        if row is None or not row.attempts:  # it never reached a worker, or was sent away again
            await self._pause(None, window_ends)
            return None
        self._attempts += row.attempts
        if self._attempts < limits.attempts_max:
            return None
        message = f"No worker answered within {limits.try_s:.0f} s."
        data = unserved(self._job.id, self._line, self._custom_id, "request_timeout", message)
        return LineResult(self._line, data, failed=True, usage_row=self._taken())

    async def _attempt_failed(
        self, error: Exception, window_ends: float, limits: LineLimits
    ) -> LineResult | None:
        self._attempts += max(1, self._row.attempts if self._row is not None else 1)
        if self._attempts < limits.attempts_max:
            await self._pause(None, window_ends)
            return None
        return await self._failed(error)

    async def _bill(self) -> UsageRow | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BILL_S_MAX):
                await self._billed.wait()
        return self._row

    async def _pause(self, asked_s: float | None, window_ends: float) -> None:
        self._pauses += 1
        pause_s = PAUSE_S * 2.0 ** min(self._pauses - 1, 5) if asked_s is None else asked_s
        pause_s = min(pause_s, PAUSE_S_MAX, max(0.0, window_ends - monotonic()))
        await asyncio.sleep(pause_s)

    async def _failed(self, error: Exception) -> LineResult:
        status, body = self._server.render(error, self._request_id)
        billed = await self._bill() if self._placed else self._row
        row = self._taken() if billed is not None else self._refused(error)
        return self._result(status, body, failed=True, row=row)

    def _result(self, status: int, body: bytes, *, failed: bool, row: UsageRow) -> LineResult:
        response = {
            "status_code": status,
            "request_id": self._request_id,
            "body": orjson.Fragment(body),
        }
        data = _encoded(self._request_id, self._custom_id, response, None)
        return LineResult(self._line, data, failed, row)

    def _refused(self, error: Exception) -> UsageRow:
        """The ledger row of a line whose body was refused before it reached the data path."""
        job = self._job.row
        name, _, version = (job.model or "").partition("@")
        return UsageRow(
            request_id=self._request_id,
            response_id=None,
            ts_us=utc_now_us(),
            team=job.team,
            key_id=job.key_id,
            model=name,
            version=version,
            pool=job.model or "",
            worker=None,
            priority=Priority.BATCH,
            endpoint=Endpoint(job.endpoint),
            stream=False,
            prompt_tokens=0,
            cached_tokens=0,
            completion_tokens=0,
            reasoning_tokens=0,
            estimated=False,
            queue_wait_s=0.0,
            ttft_s=None,
            tpot_s=None,
            duration_s=0.0,
            placement_reason=None,
            attempts=0,
            outcome=Outcome.REFUSED,
            error_code=error.code if isinstance(error, InferdError) else None,
        )


def unserved(batch_id: str, line: Line, custom_id: str, code: str, message: str) -> bytes:
    """The error file's line for one that has no response."""
    error = {"code": code, "message": message}
    return _encoded(line_id(batch_id, line.number), custom_id, None, error)


def _encoded(
    result_id: str, custom_id: str, response: dict[str, Any] | None, error: dict[str, Any] | None
) -> bytes:
    result = {"id": result_id, "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(result) + b"\n"
