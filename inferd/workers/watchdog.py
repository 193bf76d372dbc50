"""Whether a silent worker hangs, told from evidence and from what was to be expected. Pure.

A sign of progress is a read of an answer, the end of one, or a scheduler's new load report. Without
one, and with work, a worker may be silent for as long as its prompts should take, times the slack,
plus the limit; a slow one makes signs, and one that hangs makes none. Time is the watchdog's own:
what this process itself slept through is held against nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from inferd.config.watchdog import Watchdog as Limits

LOOK_S: Final = 0.5
PAUSE_S_MAX: Final = 2.0
"""Looks that are further apart than this say that this process slept, not that a worker did."""
SUSPECT_SHARE: Final = 0.5
"""Of the time until the verdict: from here on it gets no new requests where others can."""
MUTE_FACTOR: Final = 3.0
"""A scheduler that goes on while nothing comes out is given so many times the limit."""
SPINNING_CORES: Final = 0.5
"""Processor use of a worker that waits in a busy loop, as a collective does for a lost rank."""
REPORT_S_MAX: Final = 2.0
"""A load report that is older says nothing of now."""
CPU_S: Final = 5.0
"""Over which processor use is measured."""


class Decision(StrEnum):
    """What a look may end with; those in FATAL give the worker up."""

    SUSPECTED = "suspected"
    CLEARED = "cleared"
    PART_DIED = "part_died"
    SUSPENDED = "suspended"
    HUNG = "hung"
    STALLED = "stalled"
    MUTE = "mute"
    UNREACHABLE = "unreachable"
    UNHEALTHY = "unhealthy"
    OVERSIZED = "oversized"


FATAL: Final = frozenset(Decision) - {Decision.SUSPECTED, Decision.CLEARED, Decision.OVERSIZED}


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a worker's work should take, by the cost model of its pool. Seconds."""

    backlog_s: float = 0.0
    """To compute every prompt that waits for its first token."""
    again_s: float = 0.0
    """To compute the prompts of what is thought to run: an engine short of memory takes answers
    back, and of one that comes whole the first token is only assumed."""
    step_s: float = 0.0
    """One token for each answer that runs."""


NOTHING: Final = Expectation()


@dataclass(frozen=True, slots=True)
class Processes:
    """What the kernel tells of a worker's processes. Names are for people."""

    dead: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    cpu_s: float = 0.0
    resident_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RankReport:
    """Of one scheduler: `at`, by its own clock, says when it last got on; `busy`: it has work."""

    at: float
    busy: bool


@dataclass(frozen=True, slots=True)
class Signs:
    """One look at a worker. Cheap to take: no generation is asked for."""

    owed: int
    """Answers that wait for the engine; those whose client is slow are not among them."""
    begun: int
    """Of those, streams past their first token."""
    heard: int
    """Reads of answers so far, the finished ones included: it only grows."""
    ranks: tuple[RankReport, ...] | None
    """The last load report, of each of its schedulers; None: not answered."""
    engine_waiting: int
    """Requests in the engine's own queue, as last reported."""
    processes: Processes
    expected: Expectation = NOTHING


@dataclass(frozen=True, slots=True)
class Finding:
    """A decision with its evidence in words."""

    decision: Decision
    evidence: str


class Watchdog:
    """Judges one life of one worker, from READY on. Looks are to be `LOOK_S` apart."""

    def __init__(self, now: float) -> None:
        self._looked_at = now
        self._time = 0.0
        """Seconds of attention: like `now`, without what this process has slept through."""
        self._heard = 0
        self._ranks: list[tuple[float, float]] = []
        """Of each scheduler: its last report, and when that was new."""
        self._claimed_at = 0.0
        """When its schedulers last did not all say that they had nothing to do."""
        self._rank_at = 0.0
        """When the scheduler that has not got on for longest last did; idle ones do not count."""
        self._heard_at = 0.0
        self._sign_at = 0.0
        self._begun_at = 0.0
        self._answered_at = 0.0
        self._running_at = 0.0
        """When all its processes were last seen to run."""
        self._healthy_at = 0.0
        self._unhealthy = 0
        self._suspected = False
        self._oversized = False
        self._cpu: list[tuple[float, float]] = []

    @property
    def silent_s(self) -> float:
        """Since the last sign of progress; 0 without work."""
        return self._time - self._sign_at

    @property
    def suspected(self) -> bool:
        return self._suspected

    def wants_health(self, limits: Limits, signs: Signs) -> bool:
        """Whether it is time for the one probe that costs a token: nobody has asked for long."""
        idle_s = self._time - max(self._heard_at, self._healthy_at)
        due_s = LOOK_S if self._unhealthy else limits.health_idle_s
        return limits.health_idle_s > 0 and not signs.owed and idle_s >= due_s

    def health(self, *, good: bool) -> Finding | None:
        """What that probe said; two bad ones in a row are a verdict."""
        self._healthy_at = self._time
        self._unhealthy = 0 if good else self._unhealthy + 1
        if self._unhealthy < 2:  # noqa: PLR2004 - one may be lost to a request that came just then
            return None
        self._unhealthy = 0
        return Finding(
            Decision.UNHEALTHY, "idle, it did not make a single token when asked twice for one"
        )

    def look(self, now: float, limits: Limits, signs: Signs) -> Finding | None:
        """What one more look makes of it; None: nothing new."""
        self._time += min(now - self._looked_at, PAUSE_S_MAX)
        self._looked_at = now
        self._note(signs)
        if signs.processes.dead:
            names = ", ".join(signs.processes.dead)
            return Finding(Decision.PART_DIED, f"its process {names} is gone")
        if found := self._suspended(limits, signs) or self._size(limits, signs):
            return found
        return self._silence(limits, signs) if signs.owed else self._idle(limits)

    def _note(self, signs: Signs) -> None:
        """Bring the times of the last signs up to date."""
        time = self._time
        if signs.heard != self._heard:
            self._heard, self._heard_at, self._sign_at = signs.heard, time, time
            self._unhealthy = 0
        if not signs.owed:
            self._sign_at = time
        if not signs.begun:
            self._begun_at = time
        if not signs.owed or signs.ranks is None or any(rank.busy for rank in signs.ranks):
            self._claimed_at = time
        if signs.ranks is not None:
            self._answered_at = time
            self._note_ranks(signs.ranks)
        if not signs.processes.stopped:
            self._running_at = time
        self._cpu.append((time, signs.processes.cpu_s))
        while len(self._cpu) > 1 and self._cpu[1][0] <= time - CPU_S:
            self._cpu.pop(0)

    def _note_ranks(self, ranks: tuple[RankReport, ...]) -> None:
        if len(ranks) != len(self._ranks):
            self._ranks = [(0.0, self._time)] * len(ranks)
        for number, rank in enumerate(ranks):
            if rank.at != self._ranks[number][0]:
                self._sign_at = self._time
            if rank.at != self._ranks[number][0] or not rank.busy:
                self._ranks[number] = (rank.at, self._time)
        self._rank_at = min((at for _, at in self._ranks), default=self._time)

    def _cores(self) -> float:
        """Processors it has used of late."""
        (began, first), (ended, last) = self._cpu[0], self._cpu[-1]
        return max(last - first, 0.0) / (ended - began) if ended > began else 0.0

    def _suspended(self, limits: Limits, signs: Signs) -> Finding | None:
        stopped_s = self._time - self._running_at
        if stopped_s < limits.silence_s:
            return None
        self._running_at = self._time
        return Finding(
            Decision.SUSPENDED,
            f"its process {', '.join(signs.processes.stopped)} has been stopped by a signal for"
            f" {stopped_s:.1f} s",
        )

    def _size(self, limits: Limits, signs: Signs) -> Finding | None:
        allowed, held = limits.memory_bytes_max, signs.processes.resident_bytes
        if allowed is None or held <= allowed or self._oversized:
            return None
        self._oversized = True
        return Finding(
            Decision.OVERSIZED,
            f"its processes hold {held / 1e9:.2f} GB, more than memory_bytes_max"
            f" ({allowed / 1e9:.2f} GB)",
        )

    def _idle(self, limits: Limits) -> Finding | None:
        if self._suspected:
            return self._clear("nothing is owed any more")
        unanswered_s = self._time - self._answered_at
        if unanswered_s < limits.unanswered_s:
            return None
        self._answered_at = self._time
        return Finding(
            Decision.UNREACHABLE,
            f"without any work it has not answered a probe for {unanswered_s:.1f} s",
        )

    def _silence(self, limits: Limits, signs: Signs) -> Finding | None:
        allowed_s = self.allowed_s(limits, signs)
        silent_s = self._time - self._sign_at
        mute_s = self._time - max(self._heard_at, self._begun_at)
        rank_s = self._time - self._rank_at if signs.ranks is not None else 0.0
        idle_s = self._time - max(self._claimed_at, self._heard_at)
        longest_s = max(mute_s if signs.begun else 0.0, rank_s, idle_s)
        share = max(silent_s / allowed_s, longest_s / (allowed_s * MUTE_FACTOR))
        if share >= 1.0:
            return self._verdict(silent_s, mute_s, allowed_s, signs)
        if share >= SUSPECT_SHARE and not self._suspected:
            self._suspected = True
            evidence = self._evidence(silent_s, mute_s, allowed_s, signs)
            return Finding(Decision.SUSPECTED, evidence)
        if share < SUSPECT_SHARE and self._suspected:
            return self._clear("it makes progress again, or more was found to be expected")
        return None

    @staticmethod
    def allowed_s(limits: Limits, signs: Signs) -> float:
        """For how long silence is no hang."""
        expected = signs.expected
        work_s = expected.backlog_s + expected.step_s
        # Of an answer that comes whole nobody hears when its prompt is through: it is then thought
        # to run, but may be computed still.
        if signs.engine_waiting or signs.owed > signs.begun:
            work_s += expected.again_s
        return min(limits.silence_s + limits.slack * work_s, limits.silence_s_max)

    def _clear(self, evidence: str) -> Finding:
        self._suspected = False
        return Finding(Decision.CLEARED, evidence)

    def _verdict(self, silent_s: float, mute_s: float, allowed_s: float, signs: Signs) -> Finding:
        rank_s = self._time - self._rank_at if signs.ranks is not None else 0.0
        if silent_s < allowed_s and rank_s < allowed_s * MUTE_FACTOR:
            decision = Decision.MUTE
        elif self._cores() >= SPINNING_CORES:
            decision = Decision.STALLED
        else:
            decision = Decision.HUNG
        evidence = self._evidence(silent_s, mute_s, allowed_s, signs)
        self._suspected = False
        # Whoever only logs verdicts is told again when as much time has passed once more.
        self._sign_at = self._heard_at = self._claimed_at = self._time
        self._ranks = [(at, self._time) for at, _ in self._ranks]
        return Finding(decision, evidence)

    def _evidence(self, silent_s: float, mute_s: float, allowed_s: float, signs: Signs) -> str:
        expected = signs.expected
        answered_s = self._time - self._answered_at
        report = (
            "its load report stands still"
            if answered_s <= REPORT_S_MAX and silent_s > REPORT_S_MAX
            else "its scheduler reports that it has nothing to do"
            if self._claimed_at < self._time and answered_s <= REPORT_S_MAX
            else "its scheduler reports work"
            if answered_s <= REPORT_S_MAX
            else f"no probe answered for {answered_s:.1f} s"
        )
        stopped = signs.processes.stopped
        return (
            f"{signs.owed} answers owed, {signs.begun} of them begun; no sign of progress for"
            f" {silent_s:.1f} s, no output for {mute_s:.1f} s, of {allowed_s:.1f} s allowed"
            f" (prompts {expected.backlog_s:.2f} s, a step {expected.step_s:.3f} s); {report};"
            f" {self._cores():.2f} cores used"
            + (f"; stopped by a signal: {', '.join(stopped)}" if stopped else "")
        )
