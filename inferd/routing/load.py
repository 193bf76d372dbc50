"""Owns what every target of one pool carries: slots in flight and outstanding tokens.

A target is an id with a capacity. A lease is a claim on it, counted when made and given back once.
Leases belong to a generation of their target: what is left of them when a target goes down returns
to the generation that made them, so the next one starts at zero and no count is ever negative.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

_ALPHA = 0.1  # weight of one lease in the mean duration


class Target:
    """One generation of a target, from up to down. `ready`: it takes new leases."""

    __slots__ = ("id", "inflight", "inflight_max", "leases", "outstanding_tokens", "ready")

    def __init__(self, target_id: str, inflight_max: int) -> None:
        self.id = target_id
        self.inflight_max = inflight_max
        self.ready = True
        self.inflight = 0
        """Slots: one for each choice of a request, so far as the target has as many."""
        self.leases = 0
        self.outstanding_tokens = 0

    def slots_for(self, choices: int) -> int:
        """A request with more choices than the target has slots takes them all, and runs alone."""
        return min(choices, self.inflight_max)


class Lease:
    """A claim on one target. `release` and `correct` each count once, whoever calls them."""

    __slots__ = (
        "_corrected",
        "_on_correct",
        "_on_release",
        "generation",
        "granted_at",
        "queue_wait_s",
        "reason",
        "released",
        "slots",
        "target",
        "tokens",
    )

    def __init__(
        self,
        generation: Target,
        tokens: int,
        slots: int,
        reason: str,
        granted_at: float,
        queue_wait_s: float,
        on_release: Callable[[Lease], None],
        on_correct: Callable[[int], None],
    ) -> None:
        self.generation = generation
        self.target = generation.id
        self.tokens = tokens
        self.slots = slots
        self.reason = reason
        """Why this target: a `placement.Reason`."""
        self.granted_at = granted_at
        self.queue_wait_s = queue_wait_s
        self.released = False
        self._corrected = False
        self._on_release = on_release
        self._on_correct = on_correct

    def release(self) -> None:
        if not self.released:
            self.released = True
            self._on_release(self)

    def correct(self, tokens: int) -> None:
        """What the request cost in the end, before or after release: the team's share follows."""
        if not self._corrected:
            self._corrected = True
            self._on_correct(tokens)


class LoadTable:
    """The targets of one pool and the mean duration of their leases."""

    def __init__(self) -> None:
        self._targets: dict[str, Target] = {}
        self._leases_open = 0
        self._granted_at_sum = 0.0
        self._lease_s: float | None = None

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

    def up(self, target_id: str, inflight_max: int) -> None:
        """A new target, or a known one that is ready (again), with this many slots."""
        assert inflight_max >= 1, inflight_max
        target = self._targets.get(target_id)
        if target is None:
            self._targets[target_id] = Target(target_id, inflight_max)
        else:
            target.inflight_max = inflight_max
            target.ready = True

    def draining(self, target_id: str) -> None:
        target = self._targets.get(target_id)
        if target is not None:
            target.ready = False

    def down(self, target_id: str) -> None:
        target = self._targets.pop(target_id, None)
        if target is not None:
            target.ready = False

    def serves(self, excluded: Collection[str]) -> bool:
        """Some target that is not excluded takes leases, now or when it has room again."""
        for target in self._targets.values():  # noqa: SIM110 (any() costs twice as much)
            if target.ready and target.id not in excluded:
                return True
        return False

    def has_room(self, held: Collection[str] = ()) -> bool:
        for target in self._targets.values():
            if target.ready and target.inflight < target.inflight_max and target.id not in held:
                return True
        return False

    def candidates(self, choices: int, barred: Collection[str]) -> list[Target]:
        """Who could take the request now. An idle target can take any: see `Target.slots_for`."""
        return [
            target
            for target in self._targets.values()
            if target.ready
            and (not target.inflight or target.inflight + choices <= target.inflight_max)
            and target.id not in barred
        ]

    def first_free(self, barred: Collection[str]) -> Target | None:
        """Which target a request that found no room should wait for: the one with most room."""
        allowed = [
            target for target in self._targets.values() if target.ready and target.id not in barred
        ]
        return max(allowed, key=lambda target: target.inflight_max - target.inflight, default=None)

    def take(self, lease: Lease) -> None:
        target = lease.generation
        target.inflight += lease.slots
        target.outstanding_tokens += lease.tokens
        target.leases += 1
        self._leases_open += 1
        self._granted_at_sum += lease.granted_at

    def give_back(self, lease: Lease, now: float) -> None:
        target = lease.generation
        target.inflight -= lease.slots
        target.outstanding_tokens -= lease.tokens
        target.leases -= 1
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
