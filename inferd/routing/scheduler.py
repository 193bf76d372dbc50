"""One per pool: joins queue, load and placement, and grants leases. Owns who waits and who runs.

`pump` is synchronous and runs whenever something changed: arrival, release, a target's state, a
place given up. It takes tickets in fair order while a target has room. A ticket is an async
context manager: it gives its place or its lease back exactly once on every way out, also when its
owner is cancelled after the grant and before it could see it. Waits end at named limits.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType

from inferd.clock import monotonic
from inferd.config.schema import Queue
from inferd.errors import DeadlineExceeded, InferdError, NoWorker, QueueFull, WaitTooLong
from inferd.inference import InferenceRequest, Priority
from inferd.routing.fair_queue import FairQueue, Place
from inferd.routing.load import Lease, LoadTable
from inferd.routing.placement import LeastTokens, Placement

LOOK_PAST_MAX = 48
"""Tickets that one pump may look past because they cannot be granted now."""
NO_WORKER_RETRY_S = 10.0
"""Retry-After without a worker. The scheduler cannot know when one comes; this is a worker's
restart rather than the load of a large model."""
RETRY_S_MIN = 1.0

_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TargetSnapshot:
    """What one target carries."""

    target: str
    ready: bool
    inflight: int
    inflight_max: int
    outstanding_tokens: int


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """A pool's queue and load, for status and metrics."""

    pool: str
    waiting: dict[Priority, int]
    waiting_by_team: dict[str, int]
    oldest_wait_s: float
    lease_s: float
    """Mean seconds of a lease, 0 if there was none."""
    leases_open: int
    """Leases of targets that are gone included."""
    targets: tuple[TargetSnapshot, ...]


class Ticket(Place):
    """A place in the queue, then a lease. Entered once; made by `Scheduler.ticket`."""

    __slots__ = (
        "_scheduler",
        "_wakeup",
        "arrived",
        "choices",
        "deadline",
        "error",
        "excluded",
        "lease",
    )

    def __init__(
        self,
        scheduler: Scheduler,
        request: InferenceRequest,
        weight: int,
        excluded: frozenset[str],
    ) -> None:
        super().__init__(request.team, request.priority, weight, request.cost_tokens)
        self._scheduler = scheduler
        self._wakeup: asyncio.Future[None] | None = None
        self.choices = request.choices
        self.deadline = request.deadline
        self.excluded = excluded
        self.arrived = 0.0
        self.lease: Lease | None = None
        self.error: InferdError | None = None

    async def __aenter__(self) -> Lease:
        self.arrived = monotonic()
        self._scheduler.enter(self)
        if self.lease is None:
            await self._wait()
        assert self.lease is not None
        return self.lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The lease knows its ticket: without this the pair would be left to the garbage collector.
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()

    def wake(self) -> None:
        """Called once `lease` or `error` is set."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._wakeup = loop.create_future()
        timer = loop.call_at(self._scheduler.wait_ends_at(self), self._scheduler.expire, self)
        granted = False
        try:
            await self._wakeup
            if self.error is not None:
                raise self.error
            granted = True
        finally:
            # Not granted: refused, or cancelled, in which case a lease may be there, unseen.
            if not granted:
                self._scheduler.withdraw(self)
            timer.cancel()


class Scheduler:
    """The queue and the targets of the pool `pool`. All times are loop times."""

    def __init__(self, pool: str, queue: Queue, rng: random.Random) -> None:
        self.pool = pool
        self._limits = queue
        self._queue: FairQueue[Ticket] = FairQueue(queue.waiting_max, queue.waiting_per_team_max)
        self._load = LoadTable()
        self._policy = LeastTokens(rng)

    def update(self, queue: Queue) -> None:
        """New bounds: for what comes; nobody who waits is sent away."""
        self._limits = queue
        self._queue.waiting_max = queue.waiting_max
        self._queue.waiting_per_team_max = queue.waiting_per_team_max

    def ticket(
        self, request: InferenceRequest, weight: int, excluded: frozenset[str] = _NONE
    ) -> AbstractAsyncContextManager[Lease]:
        """Wait for a lease on a target that is not excluded; leaving the scope releases it.

        With `excluded` it is a retry: before its team's others, and beyond the queue's bounds.

        Raises, on entering: NoWorker, QueueFull, WaitTooLong, DeadlineExceeded, or what
        `fail_waiting` was given.
        """
        return Ticket(self, request, weight, excluded)

    def target_up(self, target_id: str, inflight_max: int) -> None:
        """The target is ready for `inflight_max` requests at a time (1 or more)."""
        self._load.up(target_id, inflight_max)
        self.pump()

    def target_draining(self, target_id: str) -> None:
        """No new leases; those that it has go on."""
        self._load.draining(target_id)
        self._refuse_unservable()

    def target_down(self, target_id: str) -> None:
        """It is gone, and its leases with it: their release changes no count of a later one."""
        self._load.down(target_id)
        self._refuse_unservable()

    def fail_waiting(self, error: InferdError) -> None:
        """Everyone who waits gets an error like this one."""
        for ticket in list(self._queue):
            self._refuse(ticket, _like(error))

    @property
    def ready_targets(self) -> tuple[str, ...]:
        return tuple(target.id for target in self._load.targets if target.ready)

    @property
    def inflight(self) -> int:
        """Slots taken on all present targets."""
        return self._load.inflight

    @property
    def leases_open(self) -> int:
        return self._load.leases_open

    def depth(self, priority: Priority) -> int:
        return self._queue.depth(priority)

    def leases_of(self, target_id: str) -> int:
        """Leases open on a target; 0 if it is not there."""
        target = self._load.get(target_id)
        return target.leases if target else 0

    def outstanding(self, target_id: str) -> int:
        """Tokens claimed on a target; 0 if it is not there."""
        target = self._load.get(target_id)
        return target.outstanding_tokens if target else 0

    def snapshot(self) -> SchedulerSnapshot:
        now = monotonic()
        by_team: dict[str, int] = {}
        for ticket in self._queue:
            by_team[ticket.team] = by_team.get(ticket.team, 0) + 1
        return SchedulerSnapshot(
            pool=self.pool,
            waiting={priority: self._queue.depth(priority) for priority in Priority},
            waiting_by_team=by_team,
            oldest_wait_s=max((now - ticket.arrived for ticket in self._queue), default=0.0),
            lease_s=self._load.lease_s(now),
            leases_open=self._load.leases_open,
            targets=tuple(
                TargetSnapshot(
                    target.id,
                    target.ready,
                    target.inflight,
                    target.inflight_max,
                    target.outstanding_tokens,
                )
                for target in self._load.targets
            ),
        )

    def pump(self) -> None:
        """Grant what can be granted, in fair order.

        A ticket that finds no room where it may go is looked past, but holds the target that will
        have room for it first: whoever comes after it cannot keep it waiting for ever.
        """
        queue, load = self._queue, self._load
        held = _NONE
        looked_past = 0
        while queue.waiting and load.has_room(held) and (ticket := queue.head()) is not None:
            barred = ticket.excluded | held if held else ticket.excluded
            if candidates := load.candidates(ticket.choices, barred):
                self._grant(ticket, self._policy.choose(candidates))
            elif looked_past < LOOK_PAST_MAX:
                looked_past += 1
                queue.look_past(ticket)
                if (target := load.first_free(barred)) is not None:
                    held |= {target.id}
            else:
                break
        if looked_past:
            queue.look_again()

    def enter(self, ticket: Ticket) -> None:
        """For a ticket only: queue it, or refuse it at once."""
        if ticket.arrived >= ticket.deadline:
            raise _too_late()
        if not self._load.serves(ticket.excluded):
            raise self._no_worker(ticket)
        is_retry = bool(ticket.excluded)
        if not is_retry and (refusal := self._queue.refusal(ticket.team, ticket.priority)):
            retry_s = self._retry_s(ticket)
            raise QueueFull(
                f"The queue of `{self.pool}` is full: {refusal}. Try again in {retry_s:.0f} s.",
                retry_after_s=retry_s,
            )
        self._queue.push(ticket, front=is_retry)
        self.pump()

    def wait_ends_at(self, ticket: Ticket) -> float:
        return min(ticket.deadline, ticket.arrived + self._limits.wait_s_max)

    def expire(self, ticket: Ticket) -> None:
        """For a ticket's timer only: it has waited as long as it may."""
        if not ticket.is_queued:
            return
        now = monotonic()
        if now >= ticket.deadline:
            self._refuse(ticket, _too_late())
        else:
            retry_s = self._retry_s(ticket)
            waited_s = now - ticket.arrived
            self._refuse(
                ticket,
                WaitTooLong(
                    f"No worker of `{self.pool}` had room within {waited_s:.3g} s."
                    f" Try again in {retry_s:.0f} s.",
                    retry_after_s=retry_s,
                ),
            )
        self.pump()

    def withdraw(self, ticket: Ticket) -> None:
        """For a ticket only: its owner is gone; what it has comes back, at no charge."""
        lease, ticket.lease = ticket.lease, None
        if lease is not None:
            lease.correct(0)
            lease.release()
        else:
            self._queue.remove(ticket)
            self.pump()

    def _grant(self, ticket: Ticket, placement: Placement) -> None:
        now = monotonic()
        target = placement.target
        self._queue.take(ticket)
        ticket.lease = Lease(
            target,
            ticket.cost,
            target.slots_for(ticket.choices),
            placement.reason,
            now,
            now - ticket.arrived,
            self._released,
            lambda tokens: self._queue.correct(ticket, tokens),
        )
        self._load.take(ticket.lease)
        ticket.wake()

    def _released(self, lease: Lease) -> None:
        self._load.give_back(lease, monotonic())
        self.pump()

    def _refuse(self, ticket: Ticket, error: InferdError) -> None:
        self._queue.remove(ticket)
        ticket.error = error
        ticket.wake()

    def _refuse_unservable(self) -> None:
        """Nobody waits for a target that is not there."""
        for ticket in list(self._queue):
            if not self._load.serves(ticket.excluded):
                self._refuse(ticket, self._no_worker(ticket))
        self.pump()

    def _no_worker(self, ticket: Ticket) -> NoWorker:
        which = "No other worker" if ticket.excluded else "No worker"
        return NoWorker(
            f"{which} of `{self.pool}` is ready. Try again in {NO_WORKER_RETRY_S:.0f} s.",
            retry_after_s=NO_WORKER_RETRY_S,
        )

    def _retry_s(self, ticket: Ticket) -> float:
        """When a new try should find room: the time to serve those who wait, by leases measured.

        Nobody waits longer than the limit, so by then the present queue is gone in any case.
        """
        ahead = self._queue.depth(Priority.INTERACTIVE)
        if ticket.priority is Priority.BATCH:
            ahead += self._queue.depth(Priority.BATCH)
        served_at_once = max(1, self._load.leases_open)
        wait_s = (ahead + 1) * self._load.lease_s(monotonic()) / served_at_once
        return max(RETRY_S_MIN, min(wait_s, self._limits.wait_s_max))


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("The request's deadline passed before a worker had room for it.")


def _like(error: InferdError) -> InferdError:
    """A copy: one instance raised in many tasks would mix up their tracebacks."""
    copy = type(error).__new__(type(error))
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    return copy
