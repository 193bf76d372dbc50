"""For how long how many of a target's slots were used, and by which priority. Pure.

Integrals over loop time: told of every change right when it happens, so nothing is sampled and
short requests count for what they were.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Worked:
    """Sums since the start. A slot-second is one slot for one second, used or not."""

    slot_s: float = 0.0
    interactive_s: float = 0.0
    batch_s: float = 0.0
    worker_s: float = 0.0
    """A worker that could serve, for one second."""
    busy_s: float = 0.0
    """The same while it had any request."""

    @property
    def idle_s(self) -> float:
        """Slot-seconds that nobody used."""
        return max(0.0, self.slot_s - self.interactive_s - self.batch_s)

    def plus(self, other: Worked) -> Worked:
        return Worked(
            self.slot_s + other.slot_s,
            self.interactive_s + other.interactive_s,
            self.batch_s + other.batch_s,
            self.worker_s + other.worker_s,
            self.busy_s + other.busy_s,
        )

    def since(self, before: Worked) -> Worked:
        """What was added; never less than nothing."""
        return Worked(
            max(0.0, self.slot_s - before.slot_s),
            max(0.0, self.interactive_s - before.interactive_s),
            max(0.0, self.batch_s - before.batch_s),
            max(0.0, self.worker_s - before.worker_s),
            max(0.0, self.busy_s - before.busy_s),
        )


class Occupancy:
    """Of one generation of a target."""

    __slots__ = (
        "_at",
        "_batch",
        "_batch_s",
        "_busy_s",
        "_interactive",
        "_interactive_s",
        "_slot_s",
        "_slots",
        "_up_s",
    )

    def __init__(self, slots: int, now: float) -> None:
        self._at = now
        self._slots = slots
        self._interactive = 0
        self._batch = 0
        self._slot_s = self._interactive_s = self._batch_s = self._up_s = self._busy_s = 0.0

    def resized(self, slots: int, now: float) -> None:
        self._advance(now)
        self._slots = slots

    def changed(self, slots: int, now: float, *, batch: bool) -> None:
        """So many more are used; fewer, if below zero."""
        self._advance(now)
        if batch:
            self._batch += slots
        else:
            self._interactive += slots

    def worked(self, now: float) -> Worked:
        self._advance(now)
        return Worked(self._slot_s, self._interactive_s, self._batch_s, self._up_s, self._busy_s)

    def _advance(self, now: float) -> None:
        elapsed_s = now - self._at
        if elapsed_s <= 0:
            return
        self._at = now
        interactive, batch = self._interactive, self._batch
        # A worker that was given fewer slots by a reload finishes what it has: that is its room.
        self._slot_s += elapsed_s * max(self._slots, interactive + batch)
        self._up_s += elapsed_s
        if interactive or batch:
            self._interactive_s += elapsed_s * interactive
            self._batch_s += elapsed_s * batch
            self._busy_s += elapsed_s
