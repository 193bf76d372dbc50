"""The end of every request, exactly once: reservation, ledger row, metrics, token estimate.

`Ledger.open` makes one `Settlement` per request. It closes when its scope has been left *and* its
usage is known; for an answer that a client left half-way the second comes up to a second later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

from inferd.clock import monotonic, utc_now_us
from inferd.counting import count, told
from inferd.errors import DeadlineExceeded, InferdError
from inferd.inference import InferenceRequest, Outcome, Usage
from inferd.metrics import Metrics
from inferd.quota.exact_counts import ExactCounts
from inferd.storage.unbilled import UnbilledAttempt
from inferd.storage.usage import UsageRow

if TYPE_CHECKING:
    from types import TracebackType

    from inferd.config.schema import Targets
    from inferd.quota.buckets import Buckets, Reservation
    from inferd.quota.budgets import Budgets
    from inferd.quota.estimate import Estimator
    from inferd.quota.prices import PriceList
    from inferd.routing.lease import Lease
    from inferd.tracing import RequestSpan, Tracing


WHY_HEADER = "x-inferd-why"
_COUNTED = frozenset({Outcome.COMPLETED, Outcome.CLIENT_LEFT})
"""Counted as a request even if it had no tokens."""


Record = Callable[[UsageRow], object]


class Bill(Protocol):
    """Whatever read an answer and can say what it cost."""

    def bill(self) -> Usage: ...


@dataclass(kw_only=True, eq=False)
class Ledger:
    """Opens settlements. `record` takes each finished row; it must not block.

    `record_unbilled` takes what an engine computed for nobody. `targets_of` gives what a model's
    users may expect, None for a model that is gone. `tracing` starts spans of requests.
    """

    buckets: Buckets
    budgets: Budgets
    prices: PriceList
    estimator: Estimator
    metrics: Metrics
    targets_of: Callable[[str], Targets | None]
    record: Record
    record_unbilled: Callable[[UnbilledAttempt], object]
    exact: ExactCounts = field(default_factory=ExactCounts)
    tracing: Tracing | None = None
    open_count: int = 0

    def open(self, request: InferenceRequest, record: Record | None = None) -> Settlement:
        """`record` takes a batch line's row, to write it with its result; it needs no bucket.

        Who takes rows says of each whether it is `billed`.
        """
        return Settlement(self, request, record)

    def billed(self, row: UsageRow) -> None:
        """A row is in the ledger, or on its way: it counts."""
        tokens = row.prompt_tokens + row.completion_tokens
        self.budgets.spend(row.team, tokens, row.cost_pico, row.ts_us)
        count(row, self.metrics, self.targets_of(row.model))

    def unbilled(self, attempt: UnbilledAttempt) -> None:
        """What an engine computed for nobody, if it is anything."""
        if tokens := attempt.prompt_tokens + attempt.completion_tokens:
            self.record_unbilled(attempt)
            self.metrics.unbilled_tokens[attempt.reason].inc(tokens)


class Settlement:
    """One request's account. Enter it before the first claim, leave it with the last."""

    __slots__ = (
        "_answered",
        "_arrived",
        "_arrived_us",
        "_blamed",
        "_decoding",
        "_first_output",
        "_free",
        "_last_output",
        "_lease",
        "_ledger",
        "_left",
        "_placed",
        "_postponed",
        "_record",
        "_request",
        "_reservation",
        "_span",
        "_usage",
        "attempts",
        "error_code",
        "outcome",
        "response_id",
        "workers_failed",
    )

    def __init__(
        self, ledger: Ledger, request: InferenceRequest, record: Record | None = None
    ) -> None:
        self._ledger = ledger
        self._record = record
        self._request = request
        self._reservation: Reservation | None = None
        self._lease: Lease | None = None
        self._decoding: Lease | None = None
        self._blamed: str | None = None
        self._arrived = monotonic()
        self._arrived_us = utc_now_us()
        self._placed: float | None = None
        self._first_output: float | None = None
        self._last_output: float | None = None
        self._left: float | None = None
        self._usage = Usage()
        self._span: RequestSpan | None = None
        self._free = False
        self._postponed = 0
        self.attempts = 0
        self.workers_failed: frozenset[str] = frozenset()
        self.outcome = Outcome.COMPLETED
        self.error_code: str | None = None
        self.response_id: str | None = None

    def __enter__(self) -> Self:
        self._ledger.open_count += 1
        tracing = self._ledger.tracing
        if tracing is not None:
            request = self._request
            self._span = tracing.request(f"{request.endpoint} {request.pool}", request.traceparent)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del trace
        self._left = monotonic()
        if kind is not None:
            self._name_the_end(error)
        if not self._postponed:
            self._close(self._left)

    def reserve(self) -> None:
        """Claim the request's most possible tokens from the buckets it falls under.

        Raises:
            BudgetSpent: not this month. RateLimited: not now. InvalidField: never.
        """
        buckets, request = self._ledger.buckets, self._request
        self._ledger.budgets.check(request.team, self._arrived_us)
        if self._record is not None:
            return
        self._reservation = buckets.reserve(
            request.team,
            request.cost_tokens,
            monotonic(),
            model=request.pool.rpartition("@")[0],
            key_id=request.key_id,
        )

    def counted(self, request: InferenceRequest) -> None:
        """Its prompt was counted, before anything was claimed for it."""
        assert self._reservation is None
        self._request = request

    def placed(self, lease: Lease, response_id: str, decoding: Lease | None = None) -> None:
        """A worker was chosen: one more attempt. In a split pool another one makes the answer."""
        if self._lease is not None:
            self._not_billed(self._decoding or self._lease, self._usage, "placed_again")
            self._usage = Usage()
        self.attempts += 1
        self._lease, self._decoding = lease, decoding
        self.response_id = response_id
        self._placed = monotonic()
        if self._span is not None:
            self._span.attempt(
                {
                    "inferd.worker": lease.target,
                    "inferd.attempt": self.attempts,
                    "inferd.placement": lease.reason,
                    "gen_ai.response.id": response_id,
                }
            )
        if self._request.why is not None:
            decoder = f"; decode_worker={decoding.target}" if decoding else ""
            self._request.why[WHY_HEADER] = lease.explain() + decoder

    @property
    def traceparent(self) -> str | None:
        """For the engine: that of the attempt, else what the client told."""
        return self._request.traceparent if self._span is None else self._span.traceparent

    def refused(self) -> None:
        """The engine refused the last attempt: its team's turn is given back."""
        if self._lease is not None:
            self._lease.correct(Usage())
        if self._decoding is not None:
            self._decoding.correct(Usage())

    def moved(self, request: InferenceRequest) -> None:
        """It goes on in another pool, which has workers of its own."""
        self._request = request
        self.workers_failed = frozenset()

    def preempted(self) -> None:
        """The last attempt made room for interactive work: it counts for nothing."""
        self.attempts -= 1
        self.refused()

    def worker_failed(self) -> None:
        """The last attempt's worker is not asked again for this request."""
        if self._lease is not None:
            self.workers_failed |= {self._blamed or self._lease.target}
            self._blamed = None

    def blame(self, worker_id: str) -> None:
        """Of two workers it was this one that failed the last attempt."""
        self._blamed = worker_id

    def output_sent(self) -> None:
        """A part of the answer is on its way to the client."""
        self._last_output = monotonic()
        if self._first_output is None:
            self._first_output = self._last_output
            self._request.forget_prompt()

    def output_ended(self, at: float) -> None:
        """This attempt sends no more; the last of its output left at loop time `at`."""
        if self._last_output is not None:
            self._last_output = max(self._last_output, at)

    def bill(self, answer: Bill) -> None:
        """The answer has ended: keep what it cost."""
        self._usage = answer.bill()

    def postpone(self, answer: Bill) -> Callable[[], None]:
        """The bill comes later: the returned function is to be called once, when it is there.

        An attempt that was followed by another one is not billed: nobody got anything of it.
        """
        self._postponed += 1
        attempt, lease = self.attempts, self._decoding or self._lease

        def close() -> None:
            assert self._postponed, "each postponed bill closes once"
            self._postponed -= 1
            if attempt == self.attempts:
                self.bill(answer)
            elif lease is not None:
                self._not_billed(lease, answer.bill(), "placed_again")
            if self._left is not None and not self._postponed:
                self._close(monotonic())

        return close

    def forget(self, answer: Bill) -> Callable[[], None]:
        """For a preempted attempt, which is nobody's: its request is served from the start again.

        The returned function is to be called once, when the engine has told what it computed.
        """
        lease = self._decoding or self._lease
        assert lease is not None, "what is preempted was placed"
        return lambda: self._not_billed(lease, answer.bill(), "preempted")

    def _not_billed(self, lease: Lease, usage: Usage, reason: str) -> None:
        request = self._request
        self._ledger.unbilled(
            UnbilledAttempt(
                request_id=request.request_id,
                ts_us=self._arrived_us,
                worker=lease.target,
                reason=reason,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
                estimated=usage.estimated,
                choices=request.choices,
            )
        )

    def _name_the_end(self, error: BaseException | None) -> None:
        if isinstance(error, InferdError):
            self.outcome = Outcome.FAILED if self.attempts else Outcome.REFUSED
            self.error_code = error.code
            # A deadline is the client's own limit; else nobody pays for what nobody has seen.
            self._free = self._first_output is None and not isinstance(error, DeadlineExceeded)
        elif isinstance(error, Exception):
            self.outcome = Outcome.FAILED  # our own mistake, which has no code
        else:
            self.outcome = Outcome.CLIENT_LEFT

    def _close(self, now: float) -> None:
        ledger = self._ledger
        ledger.open_count -= 1
        if self._free:
            if self._lease is not None:
                self._not_billed(self._decoding or self._lease, self._usage, "failed")
            self._usage = Usage()
        if self._lease is not None:
            self._lease.correct(self._usage)
        if self._decoding is not None:
            self._decoding.correct(self._usage)
        if self._reservation is not None:
            if self._usage.total_tokens or self.outcome in _COUNTED:
                self._reservation.settle(self._usage.total_tokens, now)
            else:
                self._reservation.release()  # refused or failed with nothing to show: free
        row = self._row()
        if self._record is None:
            ledger.billed(row)
            ledger.record(row)
        else:
            self._record(row)
        if self._span is not None:
            self._span.end(told(row), row.error_code)
        if self.workers_failed and self.attempts > 1:
            ledger.metrics.pool[row.pool].retries.inc()
        self._learn()

    def _learn(self) -> None:
        ledger, usage, request = self._ledger, self._usage, self._request
        if usage.prompt_tokens and not usage.estimated:
            # Under the public name, as it is estimated: aliases and versions learn together.
            ledger.estimator.learn(request.public_model, request.prompt_bytes, usage.prompt_tokens)
            if request.counted and request.choices == 1:
                ledger.exact.billed(request, usage.prompt_tokens)

    def _ttft_s(self) -> float | None:
        """Of a stream only: the one body of another answer says nothing of its first token."""
        if self._first_output is None or not self._request.stream:
            return None
        return self._first_output - self._arrived

    def _row(self) -> UsageRow:
        request = self._request
        usage = self._usage
        lease = self._lease
        answering = self._decoding or lease
        version = request.pool.rpartition("@")[2]
        left = self._left if self._left is not None else monotonic()
        tpot_s = None
        if self._first_output is not None and self._last_output is not None:
            tokens_after_first = usage.completion_tokens - 1
            if request.stream and tokens_after_first > 0:
                tpot_s = (self._last_output - self._first_output) / tokens_after_first
        return UsageRow(
            request_id=request.request_id,
            response_id=self.response_id,
            ts_us=self._arrived_us,
            team=request.team,
            key_id=request.key_id,
            model=request.public_model,
            version=version,
            pool=request.pool,
            worker=answering.target if answering else None,
            priority=request.priority,
            endpoint=request.endpoint,
            stream=request.stream,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            estimated=usage.estimated,
            queue_wait_s=(self._placed if self._placed is not None else left) - self._arrived,
            ttft_s=self._ttft_s(),
            tpot_s=tpot_s,
            duration_s=left - self._arrived,
            placement_reason=self._lease.reason if self._lease else None,
            attempts=self.attempts,
            outcome=self.outcome,
            error_code=self.error_code,
            predicted_ttft_s=lease.predicted_ttft_s if lease else None,
            hit_tokens=lease.claim.hit_tokens if lease else None,
            fair_tag=lease.fair_tag if lease else None,
            candidates=lease.candidates if lease else None,
            cost_pico=self._ledger.prices.cost_pico(request.pool, request.priority, usage),
            choices=request.choices,
            prefill_worker=lease.target if lease and self._decoding else None,
        )
