"""A pool's queue and load as status and metrics show them. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from inferd.inference import Priority
from inferd.routing.account import Account
from inferd.routing.fair_queue import FairQueue
from inferd.routing.occupancy import Worked
from inferd.routing.ticket import Ticket


@dataclass(frozen=True, slots=True)
class TargetSnapshot:
    """What one target carries."""

    target: str
    ready: bool
    inflight: int
    inflight_max: int
    outstanding_tokens: int
    backlog_tokens: int
    """Uncached prompt tokens before their first token."""
    utilization: float
    """Share of the budget per output token that is used."""
    at_rest: bool
    """Every count is zero."""


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
    worked: Worked
    """What its slots were used for since the start."""


def snapshot(
    pool: str, queue: FairQueue[Ticket], account: Account, now: float
) -> SchedulerSnapshot:
    account.derive(now)
    load = account.load
    by_team: dict[str, int] = {}
    for ticket in queue:
        by_team[ticket.team] = by_team.get(ticket.team, 0) + 1
    return SchedulerSnapshot(
        pool=pool,
        waiting={priority: queue.depth(priority) for priority in Priority},
        waiting_by_team=by_team,
        oldest_wait_s=max((now - ticket.arrived for ticket in queue), default=0.0),
        lease_s=load.lease_s(now),
        leases_open=load.leases_open,
        worked=load.worked(now),
        targets=tuple(
            TargetSnapshot(
                target=target.id,
                ready=target.ready,
                inflight=target.inflight,
                inflight_max=target.inflight_max,
                outstanding_tokens=target.outstanding_tokens,
                backlog_tokens=target.backlog_tokens,
                utilization=target.utilization,
                at_rest=target.at_rest,
            )
            for target in load.targets
        ),
    )
