"""Owns the targets of one pool, the leases on them, and how long a lease lasts.

A lease is counted when made and given back once. Leases belong to a generation of their target:
what is left of them when a target goes down returns to the generation that made them, so the next
one starts at zero and no count is ever negative.
"""

from __future__ import annotations

from collections.abc import Collection

from inferd.routing.cost_model import H100_8B
from inferd.routing.lease import Lease
from inferd.routing.occupancy import Worked
from inferd.routing.target import Target

_ALPHA = 0.1  # weight of one lease in the mean duration


class LoadTable:
    """The targets of one pool and the mean duration of their leases."""

    def __init__(self) -> None:
        self._targets: dict[str, Target] = {}
        self.revocable: dict[Lease, None] = {}
        """Batch leases that may be taken back, the youngest last."""
        self._leases_open = 0
        self._granted_at_sum = 0.0
        self._lease_s: float | None = None
        self._worked = Worked()
        """By targets that are gone."""

    @property
    def targets(self) -> Collection[Target]:
        return self._targets.values()

    @property
    def leases_open(self) -> int:
        """Leases not yet given back, those of generations that are gone included."""
        return self._leases_open

    @property
    def inflight(self) -> int:
        return sum(target.inflight for target in self._targets.values())

    def get(self, target_id: str) -> Target | None:
        return self._targets.get(target_id)

    def worked(self, now: float) -> Worked:
        """What its targets have been used for since the start, those that are gone included."""
        worked = self._worked
        for target in self._targets.values():
            worked = worked.plus(target.occupancy.worked(now))
        return worked

    def up(self, target_id: str, inflight_max: int, now: float) -> Target | None:
        """A target is ready (again) with this many slots. Returned if it is a new one."""
        assert inflight_max >= 1, inflight_max
        target = self._targets.get(target_id)
        if target is None:
            made = self._targets[target_id] = Target(target_id, inflight_max, now)
            made.derive(H100_8B, 1e3, 0.0)
            return made
        target.inflight_max = inflight_max
        target.occupancy.resized(inflight_max, now)
        target.ready = True
        return None

    def draining(self, target_id: str) -> None:
        target = self._targets.get(target_id)
        if target is not None:
            target.ready = False

    def down(self, target_id: str, now: float) -> Target | None:
        target = self._targets.pop(target_id, None)
        if target is not None:
            target.ready = False
            self._worked = self._worked.plus(target.occupancy.worked(now))
        return target

    def serves(self, excluded: Collection[str]) -> bool:
        """Some target that is not excluded takes leases, now or when it has room again."""
        for target in self._targets.values():  # noqa: SIM110 (any() costs twice as much)
            if target.ready and target.id not in excluded:
                return True
        return False

    def has_idle(self) -> bool:
        """Some target that takes leases has none."""
        for target in self._targets.values():  # noqa: SIM110 (any() costs twice as much)
            if not target.leases and target.ready:
                return True
        return False

    def allowed(self, barred: Collection[str]) -> list[Target]:
        """Who takes leases and is not barred, with room or without."""
        if barred:
            return [t for t in self._targets.values() if t.ready and t.id not in barred]
        return [target for target in self._targets.values() if target.ready]

    def take(self, lease: Lease) -> None:
        target = lease.generation
        target.take(lease.claim, lease.slots, lease.granted_at)
        target.occupancy.changed(lease.slots, lease.granted_at, batch=lease.revocable)
        if lease.revocable:
            self.revocable[lease] = None
        self._leases_open += 1
        self._granted_at_sum += lease.granted_at

    def answers(self, lease: Lease) -> None:
        lease.had_first_token = True
        lease.generation.first_token(lease.claim, lease.slots)
        if lease.ticket.stream:
            self.revocable.pop(lease, None)  # a client has seen a part of the answer

    def give_back(self, lease: Lease, now: float) -> None:
        target = lease.generation
        target.give_back(lease.claim, lease.slots, had_first_token=lease.had_first_token)
        target.occupancy.changed(-lease.slots, now, batch=lease.revocable)
        self.revocable.pop(lease, None)
        self._leases_open -= 1
        # Exactly zero when idle, or rounding errors would add up over the years.
        self._granted_at_sum = self._granted_at_sum - lease.granted_at if self._leases_open else 0.0
        lasted_s = now - lease.granted_at
        if self._lease_s is None:
            self._lease_s = lasted_s
        else:
            self._lease_s += _ALPHA * (lasted_s - self._lease_s)

    def lease_s(self, now: float) -> float:
        """Mean seconds of a lease: as measured, or as long as the open ones have lasted already."""
        measured_s = self._lease_s or 0.0
        if not self._leases_open:
            return measured_s
        return max(measured_s, now - self._granted_at_sum / self._leases_open)
