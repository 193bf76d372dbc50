"""One request's place in the queue, then its lease: an async context manager, entered once.

It gives its place or its lease back exactly once on every way out, also when its owner is cancelled
after the grant and before it could see it. A revoked lease ends its scope with `Preempted`, by the
same cancellation that a timeout uses, so whoever holds it needs no code for that.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol

from inferd.clock import monotonic
from inferd.errors import InferdError, Preempted
from inferd.inference import InferenceRequest
from inferd.routing.claim import Asked
from inferd.routing.lease import Holder, Lease


class TicketOwner(Protocol):
    """The scheduler, as a ticket sees it."""

    def enter(self, ticket: Ticket) -> None: ...

    def wait_ends_at(self, ticket: Ticket) -> float: ...

    def expire(self, ticket: Ticket) -> None: ...

    def withdraw(self, ticket: Ticket) -> None: ...


class Ticket(Holder):
    """A place in the queue, then a lease. Made by `Scheduler.ticket`."""

    __slots__ = (
        "_cancelling",
        "_owner",
        "_task",
        "_wakeup",
        "arrived",
        "asked",
        "deadline",
        "error",
        "excluded",
        "latest",
        "lease",
        "rank",
    )

    def __init__(
        self,
        owner: TicketOwner,
        request: InferenceRequest,
        weight: int,
        excluded: frozenset[str],
        asked: Asked,
    ) -> None:
        super().__init__(request.team, request.priority, weight, 0)
        self._owner = owner
        self._wakeup: asyncio.Future[None] | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self.asked = asked
        self.deadline = request.deadline
        self.stream = request.stream
        self.rank = request.rank
        self.excluded = excluded
        self.arrived = 0.0
        self.latest = float("inf")
        """Loop time after which no worker can answer in time any more."""
        self.lease: Lease | None = None
        self.error: InferdError | None = None

    async def __aenter__(self) -> Lease:
        self.arrived = monotonic()
        self._owner.enter(self)
        if self.lease is None:
            await self._wait()
        assert self.lease is not None
        if self.lease.revocable:
            self._task = asyncio.current_task()
            self._cancelling = self._task.cancelling() if self._task else 0
            if self.lease.revoked:
                self.revoke()
        return self.lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The lease knows its ticket: without this the pair would be left to the garbage collector.
        lease, self.lease = self.lease, None
        task, self._task = self._task, None
        if lease is None:
            return
        lease.release()
        if lease.revoked and task is not None:
            left = task.uncancel()
            if kind is not None and left <= self._cancelling:
                cause = error if isinstance(error, Exception) else None
                raise Preempted("Interactive requests took its place.") from cause

    def wake(self) -> None:
        """Called once `lease` or `error` is set."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def revoke(self) -> None:
        """Cancel whoever holds the lease; before it has seen the lease, as soon as it does."""
        if self._task is not None:
            self._task.cancel()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._wakeup = loop.create_future()
        timer = loop.call_at(self._owner.wait_ends_at(self), self._owner.expire, self)
        granted = False
        try:
            await self._wakeup
            if self.error is not None:
                raise self.error
            granted = True
        finally:
            # Not granted: refused, or cancelled, in which case a lease may be there, unseen.
            if not granted:
                self._owner.withdraw(self)
            timer.cancel()
