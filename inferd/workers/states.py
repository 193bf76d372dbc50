"""The states of a worker, and the one function that moves it between them.

STOPPED -> SPAWNING -> LOADING -> WARMING -> READY -> DRAINING -> STOPPED    a spawned life
STOPPED -> READY                 taken over: an earlier inferd started it, and it serves
STOPPED -> LOADING -> READY -> DRAINING -> STOPPED       attached: someone else runs it
SPAWNING, LOADING, WARMING -> STOPPED                    let go before it was ready
STOPPED, SPAWNING, LOADING, WARMING, READY, DRAINING -> FAILED
FAILED -> SPAWNING                                       the next life in the same place
FAILED -> LOADING, STOPPED                               attached: answers again, or let go
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from inferd import clock

if TYPE_CHECKING:
    from inferd.workers.base import WorkerBase
    from inferd.workers.warm_up import WarmUp

log = logging.getLogger(__name__)


class WorkerState(StrEnum):
    """Where a worker is in its life. Only READY takes new leases."""

    STOPPED = "stopped"  # not begun, or over in good order
    SPAWNING = "spawning"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"  # finishes what it has
    FAILED = "failed"


_S = WorkerState
TRANSITIONS: Final[Mapping[WorkerState, frozenset[WorkerState]]] = MappingProxyType(
    {
        _S.STOPPED: frozenset({_S.SPAWNING, _S.LOADING, _S.READY, _S.FAILED}),
        _S.SPAWNING: frozenset({_S.LOADING, _S.STOPPED, _S.FAILED}),
        _S.LOADING: frozenset({_S.WARMING, _S.READY, _S.STOPPED, _S.FAILED}),
        _S.WARMING: frozenset({_S.READY, _S.STOPPED, _S.FAILED}),
        _S.READY: frozenset({_S.DRAINING, _S.FAILED}),
        _S.DRAINING: frozenset({_S.STOPPED, _S.FAILED}),
        _S.FAILED: frozenset({_S.SPAWNING, _S.LOADING, _S.STOPPED}),
    }
)

STARTING: Final = frozenset({_S.SPAWNING, _S.LOADING, _S.WARMING})
"""The states whose length is a phase of the start, in `worker_start_seconds`."""


class Observer(Protocol):
    """Who is told what happens to workers. Called synchronously: must neither block nor raise."""

    def worker_changed(self, worker: WorkerBase, before: WorkerState, after: WorkerState) -> None:
        """`worker` is now in `after`."""

    def warmed(self, worker: WorkerBase, warm: WarmUp) -> None:
        """`worker` has answered its warm-up prompts: what they cost and how fast it was."""

    def suspected(self, worker: WorkerBase, *, suspected: bool) -> None:
        """Whether `worker` seems to hang: not sure enough to end it, too likely to be sent more."""


def move(worker: WorkerBase, to: WorkerState, reason: str = "") -> None:
    """Change a worker's state, then tell the observer, the metrics and the log, in that order.

    Raises:
        AssertionError: the machine has no such transition; nothing has been changed.
    """
    before = worker.state
    if to not in TRANSITIONS[before]:
        raise AssertionError(f"worker {worker.id}: no transition from {before} to {to} ({reason})")
    now = clock.monotonic()
    spent_s = now - worker.since
    worker.state, worker.reason = to, reason
    worker.since, worker.since_us = now, clock.utc_now_us()
    worker.observer.worker_changed(worker, before, to)
    worker.metrics.worker[worker.id].moved(before, to)
    if before in STARTING and to is not WorkerState.FAILED:
        worker.metrics.worker_start[before].observe(spent_s)
    log.log(
        logging.ERROR if to is WorkerState.FAILED else logging.INFO,
        "worker %s is %s%s",
        worker.id,
        to,
        f": {reason}" if reason else "",
        extra={"worker": worker.id, "pool": worker.pool, "before": before, "spent_s": spent_s},
    )
