"""Whether an answer can still come in time, and when to try again if not.

Owns the promises: each Retry-After of a refusal is held against when such a request could really
have been taken, and the ratio corrects those that follow. And the shedding by rank: while requests
of a rank are refused, those of lower ranks give way. Batch has no time by which it must answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from inferd.config.schema import Targets
from inferd.errors import InferdError, Shed, WaitTooLong
from inferd.inference import Priority
from inferd.routing.account import Account
from inferd.routing.fair_queue import FairQueue
from inferd.routing.ticket import Ticket

SHORT_PROMPT_TOKENS: Final = 4_096
"""Up to here a model's TTFT target holds as it stands."""
IDLE_FACTOR: Final = 2.0
"""A target is never tighter than this many times what an idle worker takes."""
RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 60.0
PROMISES_MAX: Final = 64
"""Promises watched at a time; more are made than are needed to be measured."""
LOOK_S: Final = 0.05
"""How often promises are looked at."""
LEARN: Final = 0.2
MISSED: Final = 0.03
"""Share of promises that may turn out too short: who comes back as told should be let in."""
FACTOR_MIN: Final = 0.25
FACTOR_MAX: Final = 32.0
SHED_S: Final = 1.0
"""How long a refusal makes lower ranks give way."""


def ttft_target_s(targets: Targets, prompt_tokens: int) -> float:
    """The model's target for prompts up to 4,096 tokens, in proportion beyond."""
    return targets.ttft_ms / 1_000 * max(1.0, prompt_tokens / SHORT_PROMPT_TOKENS)


@dataclass(slots=True)
class _Promise:
    made_at: float
    promised_s: float
    raw_s: float
    prompt_tokens: int


class Promises:
    """What was said to who was refused. `kept(promised_s, true_s)` is told of each, once.

    The true time is when such a request would first have been let in, which under overload is often
    a fraction of a second: a refusal keeps the queue just long enough. What is promised is whole
    seconds, 1 at least, since that is what Retry-After can say.
    """

    def __init__(self, kept: Callable[[float, float], None] | None = None) -> None:
        self._open: deque[_Promise] = deque()
        self._kept = kept
        self._looked_at = 0.0
        self.factor = 1.0
        """By which a prediction is multiplied to be long enough, nearly always, of late."""

    def make(self, predicted_s: float, prompt_tokens: int, now: float) -> float:
        """Seconds to promise where the queue and the backlogs predict so many."""
        raw_s = max(LOOK_S, predicted_s)  # nothing shorter can be told apart afterwards
        promised_s = min(RETRY_S_MAX, max(RETRY_S_MIN, raw_s * self.factor))
        if len(self._open) < PROMISES_MAX:
            self._open.append(_Promise(now, promised_s, raw_s, prompt_tokens))
        return promised_s

    def look(self, now: float, can_answer: Callable[[int, float], bool]) -> None:
        """Close those that could be taken by now, or that are overdue for too long to tell."""
        if not self._open or now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        for _ in range(len(self._open)):
            promise = self._open.popleft()
            true_s = now - promise.made_at
            if true_s < RETRY_S_MAX and not can_answer(promise.prompt_tokens, now):
                self._open.append(promise)
                continue
            missed = true_s > promise.raw_s * self.factor
            learnt = self.factor * (1 + LEARN * (missed - MISSED))
            self.factor = min(FACTOR_MAX, max(FACTOR_MIN, learnt))
            if self._kept is not None:
                self._kept(promise.promised_s, true_s)


class Shedding:
    """Which ranks give way: those below one that had to be refused within the last second."""

    def __init__(self) -> None:
        self._refused_at: dict[int, float] = {}

    def refused(self, rank: int, now: float) -> None:
        self._refused_at[rank] = now

    def sheds(self, rank: int, now: float) -> bool:
        return any(higher > rank and now - at <= SHED_S for higher, at in self._refused_at.items())


class Admission:
    """Of one pool. `kept` is told of every promise that could be measured."""

    def __init__(
        self,
        pool: str,
        account: Account,
        queue: FairQueue[Ticket],
        kept: Callable[[float, float], None] | None,
    ) -> None:
        self._pool = pool
        self._account = account
        self._queue = queue
        self._promises = Promises(kept)
        self._shedding = Shedding()

    def look(self, now: float) -> None:
        """See which promises could be kept by now."""
        self._promises.look(now, self._can_answer)

    def overloaded(self, rank: int, now: float) -> None:
        """A request of this rank had to be refused."""
        self._shedding.refused(rank, now)

    def admit(self, ticket: Ticket, now: float) -> None:
        """Set the time by which a ticket wants its first token, before it is queued.

        Raises:
            Shed: higher ranks are refused already.
            WaitTooLong: the queue ahead of it alone takes too long.
        """
        account, asked = self._account, ticket.asked
        if not account.conditions.refuse_late or asked.is_batch:
            return
        own_s = account.own_ms(asked) / 1e3
        target_s = ttft_target_s(account.serving.targets, asked.prompt_tokens)
        target_s = max(target_s, IDLE_FACTOR * own_s)
        asked.due = ticket.order = now + target_s
        asked.own_s = own_s
        ticket.latest = asked.due - own_s
        if ticket.excluded or account.load.has_idle():
            return
        if self._shedding.sheds(ticket.rank, now):
            retry_s = self._promises.make(SHED_S, asked.prompt_tokens, now)
            raise Shed(
                f"`{self._pool}` is overloaded and serves higher ranks first."
                f" Try again in {retry_s:.0f} s.",
                retry_after_s=retry_s,
            )
        if now + self._queue_s(ticket) > ticket.latest:
            raise self.late(ticket, now)

    def turns_on_tokens(self, priority: Priority, low: int, high: int, now: float) -> bool:
        """Whether it depends on the tokens of a new prompt if it can be answered in time."""
        account = self._account
        if not account.conditions.refuse_late or priority is Priority.BATCH:
            return False
        if account.load.has_idle():
            return False
        return self._can_answer(low, now) != self._can_answer(high, now)

    def late(self, ticket: Ticket, now: float) -> InferdError:
        """The refusal of a ticket that no worker can answer in time."""
        asked = ticket.asked
        self._shedding.refused(ticket.rank, now)
        target_s = asked.due - ticket.arrived
        excess_s = self._least_s(asked.prompt_tokens, now + target_s)
        retry_s = self._promises.make(excess_s - target_s, asked.prompt_tokens, now)
        return WaitTooLong(
            f"No worker of `{self._pool}` can give the first token within {target_s:.3g} s."
            f" Try again in {retry_s:.0f} s.",
            retry_after_s=retry_s,
        )

    def _queue_s(self, ticket: Ticket) -> float:
        """What its own team's requests that are due before it take, shared by all workers.

        A lower bound: other teams' are not counted, for fairness may put them behind it.
        """
        ahead_s = 0.0
        for other in self._queue.waiting_of(ticket.team, ticket.priority):
            if other.order > ticket.order:
                break
            if other is not ticket:
                ahead_s += other.asked.own_s
        if not ahead_s:
            return 0.0
        return ahead_s / max(1, sum(target.ready for target in self._account.load.targets))

    def _can_answer(self, prompt_tokens: int, now: float) -> bool:
        """Whether a prompt that nobody holds would be answered in time if it came now."""
        account = self._account
        account.derive(now)
        cost = account.conditions.cost
        target_s = max(
            ttft_target_s(account.serving.targets, prompt_tokens),
            IDLE_FACTOR * cost.alone_ms(prompt_tokens) / 1e3,
        )
        return self._least_s(prompt_tokens, now + target_s) <= target_s

    def _least_s(self, prompt_tokens: int, due: float) -> float:
        """The soonest first token of a prompt due then, behind everyone who is due before it."""
        ahead_s = sum(
            one.asked.own_s for one in self._queue if one.order < due and not one.asked.is_batch
        )
        workers = max(1, sum(target.ready for target in self._account.load.targets))
        return ahead_s / workers + self._account.least_ms(prompt_tokens) / 1e3
