"""One per pool: joins queue, load and placement, and grants leases. Owns who waits and who runs.

`pump` is synchronous and runs whenever something changed: arrival, first token, release, a target's
state, a place given up. It takes tickets in fair order while a target takes any; one whose best
target is busy is looked past (late binding), until its team lags by `LOCALITY_S`. Waits end at
named limits, and as soon as no worker can answer in time. Batch work makes room for the rest.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from inferd.clock import monotonic
from inferd.config.schema import Queue
from inferd.errors import DeadlineExceeded, InferdError, NoWorker, QueueFull, WaitTooLong
from inferd.inference import InferenceRequest, Priority, Usage
from inferd.routing.account import Account
from inferd.routing.admission import RETRY_S_MIN, Admission
from inferd.routing.batch_speed import BatchSpeed, batch_speed
from inferd.routing.claim import Asked
from inferd.routing.fair_queue import FairQueue
from inferd.routing.lease import Lease, LeaseOwner
from inferd.routing.placement import Placement, Wait
from inferd.routing.serving import Serving
from inferd.routing.snapshot import SchedulerSnapshot, snapshot
from inferd.routing.ticket import Ticket
from inferd.routing.work import NO_WORK, Work, work_of

LOOK_PAST_MAX: Final = 48
"""Tickets that one pump may look past because they cannot be granted now."""
SLACK_S: Final = 3.0
"""Of the whole pool's work: teams whose service differs by less are served by due time."""
LOCALITY_S: Final = 5.0
"""Of the whole pool's work: how far a team may fall behind for waiting for its warm workers."""
NO_WORKER_RETRY_S: Final = 10.0
"""Retry-After without a worker. The scheduler cannot know when one comes; this is a worker's
restart rather than the load of a large model."""

_NONE: frozenset[str] = frozenset()


class Scheduler(LeaseOwner):
    """The queue and the targets of the pool `pool`. All times are loop times."""

    def __init__(
        self,
        pool: str,
        queue: Queue,
        rng: random.Random,
        serving: Serving | None = None,
        kept: Callable[[float, float], None] | None = None,
    ) -> None:
        self.pool = pool
        self._limits = queue
        self._queue: FairQueue[Ticket] = FairQueue(queue.waiting_max, queue.waiting_per_team_max)
        self._account = Account(serving or Serving(), rng)
        self._load = self._account.load
        self._locality_cost = 0.0
        self._admission = Admission(pool, self._account, self._queue, kept)

    def update(self, queue: Queue, serving: Serving | None = None) -> None:
        """New bounds and settings: for what comes; nobody who waits is sent away."""
        self._limits = queue
        self._queue.waiting_max = queue.waiting_max
        self._queue.waiting_per_team_max = queue.waiting_per_team_max
        if serving is not None and serving != self._account.serving:
            self._account.apply(serving)
            self._resize()
            self.pump()

    def ticket(
        self, request: InferenceRequest, weight: int, excluded: frozenset[str] = _NONE
    ) -> AbstractAsyncContextManager[Lease]:
        """Wait for a lease on a target that is not excluded; leaving the scope releases it.

        With `excluded` it is a retry: before its team's others, and beyond the queue's bounds.

        Raises, on entering: NoWorker, QueueFull, WaitTooLong, Shed, DeadlineExceeded, or what
        `fail_waiting` was given; on leaving: Preempted, if a batch request's lease was revoked.
        """
        account = self._account
        team_tokens = account.answer_tokens_of(request.team)
        asked = Asked.of(request, account.answer_tokens, team_tokens)
        return Ticket(self, request, weight, excluded, asked)

    def target_up(self, target_id: str, inflight_max: int) -> None:
        """The target is ready for `inflight_max` requests at a time (1 or more)."""
        self._account.up(target_id, inflight_max, monotonic())
        self._resize()
        self.pump()

    def target_draining(self, target_id: str) -> None:
        """No new leases; those that it has go on."""
        self._load.draining(target_id)
        self._refuse_unservable()

    def target_down(self, target_id: str) -> None:
        """It is gone, and its leases with it: their release changes no count of a later one."""
        self._account.down(target_id, monotonic())
        self._resize()
        self._refuse_unservable()

    def target_reported(self, target_id: str, kv_used_tokens: int, kv_tokens: int) -> None:
        """An engine's own word on its KV cache: it corrects our account for two seconds."""
        target = self._load.get(target_id)
        if target is not None:
            target.reported(kv_used_tokens, kv_tokens, monotonic())

    def target_holds(self, target_id: str, adapters: frozenset[str]) -> None:
        """Which adapters its engine holds: requests for them go there first."""
        target = self._load.get(target_id)
        if target is not None:
            target.adapters = adapters

    def target_warmed(self, prompt_tokens: int, ttft_s: float, tpot_s: float) -> None:
        """A worker's warm-up: uncached prompt tokens, its first token, its time per token."""
        self._account.warmed(prompt_tokens, ttft_s, tpot_s)

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

    @property
    def blocks(self) -> int:
        """Different prompt blocks that the index knows."""
        return len(self._account.index)

    def depth(self, priority: Priority) -> int:
        return self._queue.depth(priority)

    def leases_of(self, target_id: str) -> int:
        """Leases open on a target; 0 if it is not there."""
        target = self._load.get(target_id)
        return target.leases if target else 0

    def work_of(self, target_id: str) -> Work:
        """How long its present work should take a target; nothing if it is not there."""
        target = self._load.get(target_id)
        return work_of(target, self._account.conditions.cost) if target else NO_WORK

    def outstanding(self, target_id: str) -> int:
        """Tokens claimed on a target; 0 if it is not there."""
        target = self._load.get(target_id)
        return target.outstanding_tokens if target else 0

    def cost_of(self, usage: Usage) -> int:
        """What a request costs its team's share: tokens, as dear as uncached prompt tokens."""
        return self._account.bill(usage)

    def turns_on_tokens(self, priority: Priority, low: int, high: int) -> bool:
        """Whether a prompt is let in now if it has `low` tokens, but not if it has `high`."""
        return self._admission.turns_on_tokens(priority, low, high, monotonic())

    def batch_speed(self, prompt_tokens: int) -> BatchSpeed | None:
        """How fast batch work is done at the load there is now; None: by nobody."""
        self._account.derive(monotonic())
        return batch_speed(self._account, prompt_tokens)

    def snapshot(self) -> SchedulerSnapshot:
        return snapshot(self.pool, self._queue, self._account, monotonic())

    def pump(self, now: float | None = None) -> None:
        """Grant what can be granted, in fair order.

        A ticket whose best target is busy is looked past. One that finds no room holds the target
        that will have room for it first: who comes after it cannot keep it waiting for ever.
        """
        queue, account = self._queue, self._account
        now = monotonic() if now is None else now
        self._admission.look(now)
        if not queue.waiting:
            return
        account.derive(now)
        held = _NONE
        looked_past = 0
        while (ticket := queue.head()) is not None and self._takes_any(held):
            placement = self._choose(ticket, held, now)
            if placement is not None:
                if placement.wait is None:
                    self._grant(ticket, placement, now)
                    continue
                if placement.wait is Wait.LATE:
                    self._refuse(ticket, self._admission.late(ticket, now))
                    continue
                if placement.wait is Wait.ROOM:
                    held |= {placement.target.id}
            if looked_past == LOOK_PAST_MAX:
                break
            looked_past += 1
            queue.look_past(ticket)
        if looked_past:
            queue.look_again()
        if queue.depth(Priority.INTERACTIVE):
            self._make_room(held)

    def _takes_any(self, held: frozenset[str]) -> bool:
        takes = self._account.policy.takes
        for target in self._load.targets:  # noqa: SIM110 - any() costs twice as much
            if takes(target) and target.id not in held:
                return True
        return False

    def _choose(self, ticket: Ticket, held: frozenset[str], now: float) -> Placement | None:
        """None: every target it may go to is held for somebody before it, or too busy for it."""
        barred = ticket.excluded | held if held else ticket.excluded
        targets = self._load.allowed(barred)
        asked = ticket.asked
        limit = self._account.serving.batch_utilization_max
        if asked.is_batch and limit < 1.0:
            targets = [target for target in targets if target.takes_batch(limit)]
        if not targets:
            return None
        self._account.look_up(asked)
        asked.candidates = len(targets)
        asked.spills = self._queue.lag(ticket) > self._locality_cost
        if asked.adapter is not None:
            holders = [target for target in targets if asked.adapter in target.adapters]
            if holders and len(holders) < len(targets):
                placement = self._account.policy.choose(asked, holders, now)
                if placement.wait is None:
                    return placement
        return self._account.policy.choose(asked, targets, now)

    def enter(self, ticket: Ticket) -> None:
        """For a ticket only: queue it, or refuse it at once."""
        now = ticket.arrived
        if now >= ticket.deadline:
            raise _too_late()
        if not self._load.serves(ticket.excluded):
            raise self._no_worker(ticket)
        is_retry = bool(ticket.excluded)
        if not is_retry and (refusal := self._queue.refusal(ticket.team, ticket.priority)):
            retry_s = self._retry_s(ticket)
            self._admission.overloaded(ticket.rank, now)
            raise QueueFull(
                f"The queue of `{self.pool}` is full: {refusal}. Try again in {retry_s:.0f} s.",
                retry_after_s=retry_s,
            )
        self._account.look_up(ticket.asked)
        ticket.cost = self._account.price(ticket.asked)
        self._admission.admit(ticket, now)
        self._queue.push(ticket, front=is_retry)
        self.pump(now)
        if ticket.error is not None:
            raise ticket.error

    def wait_ends_at(self, ticket: Ticket) -> float:
        return min(ticket.deadline, ticket.arrived + self._limits.wait_s_max, ticket.latest)

    def expire(self, ticket: Ticket) -> None:
        """For a ticket's timer only: it has waited as long as it may."""
        if not ticket.is_queued:
            return
        now = monotonic()
        # Not compared with the time: a timer may fire a rounding error before its own.
        ended_at = self.wait_ends_at(ticket)
        if ended_at >= ticket.deadline:
            self._refuse(ticket, _too_late())
        elif ended_at >= ticket.latest:
            self._refuse(ticket, self._admission.late(ticket, now))
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
            lease.correct(Usage())
            lease.release()
        else:
            self._queue.remove(ticket)
            self.pump()

    def lease_answers(self, lease: Lease) -> None:
        """For a lease only: past its prompt."""
        self._account.answers(lease)
        self.pump()

    def lease_ended(self, lease: Lease) -> None:
        """For a lease only: given back."""
        now = monotonic()
        self._account.ended(lease, now)
        self.pump(now)

    def lease_billed(self, lease: Lease, usage: Usage) -> None:
        """For a lease only: what it cost."""
        self._account.billed(lease, usage)
        self._queue.correct(lease.ticket, self._account.bill(usage))

    def _grant(self, ticket: Ticket, placement: Placement, now: float) -> None:
        account, asked = self._account, ticket.asked
        target = placement.target
        claim = asked.claim(target.bit)
        ticket.cost = account.price_at(claim, asked)
        tag = self._queue.tag(ticket)
        self._queue.take(ticket)
        lease = Lease(target, claim, self, ticket, placement.reason, now, now - ticket.arrived)
        lease.fair_tag, lease.candidates = tag, asked.candidates
        lease.revocable = asked.is_batch
        account.grant(asked, placement, claim, lease, now)
        ticket.lease = lease
        if not ticket.stream:
            expected_s = lease.predicted_ttft_s or 0.0
            asyncio.get_running_loop().call_later(expected_s, lease.assume_first_token)
        ticket.wake()

    def _make_room(self, held: frozenset[str]) -> None:
        """Interactive requests wait for targets that batch keeps busy: its youngest lease goes.

        One at a time for each that waits: a revoked lease counts until it is given back.
        """
        if not self._load.revocable:
            return
        takes = self._account.policy.takes
        going = sum(lease.revoked for lease in self._load.revocable)
        if going >= self._queue.depth(Priority.INTERACTIVE):
            return
        for lease in reversed(self._load.revocable):
            target = lease.generation
            if not lease.revoked and (target.id in held or not takes(target)):
                lease.revoked = True
                lease.ticket.revoke()
                return

    def _resize(self) -> None:
        """The bounds of how far teams may be apart follow the size of the pool."""
        speed = len(self._load.targets) * 1e3 / self._account.serving.cost.b_ms
        self._locality_cost = LOCALITY_S * speed
        self._queue.allow(SLACK_S * speed if self._account.conditions.refuse_late else 0.0)

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
