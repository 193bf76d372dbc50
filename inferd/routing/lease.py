"""A claim on one target, from its grant to its bill. Each of its events counts once.

Holds no counts: its owner, the scheduler, keeps the account. `release` is synchronous and may be
called from anywhere, as often as anyone likes.
"""

from __future__ import annotations

from inferd.inference import Usage
from inferd.routing.claim import Claim
from inferd.routing.fair_queue import Place
from inferd.routing.target import Target


class Holder(Place):
    """Whose lease it is. `stream`: its client sees the answer as it comes."""

    __slots__ = ("stream",)

    stream: bool

    def revoke(self) -> None:
        """End the work that the lease is held for."""
        raise NotImplementedError


class Lease:
    """A claim on one target. Each of its events counts once, whoever calls it and how often."""

    __slots__ = (
        "_corrected",
        "_owner",
        "candidates",
        "claim",
        "ended_at",
        "fair_tag",
        "first_token_at",
        "generation",
        "granted_at",
        "had_first_token",
        "parts_ms",
        "predicted_ttft_s",
        "prefill_share",
        "prompt_only",
        "queue_wait_s",
        "reason",
        "released",
        "revocable",
        "revoked",
        "slots",
        "step_ms",
        "target",
        "ticket",
        "tokens",
    )

    def __init__(
        self,
        generation: Target,
        claim: Claim,
        owner: LeaseOwner,
        ticket: Holder,
        reason: str,
        granted_at: float,
        queue_wait_s: float,
    ) -> None:
        self.generation = generation
        self.target = generation.id
        self.claim = claim
        self.tokens = claim.tokens
        self.slots = generation.slots_for(claim.choices)
        self.reason = reason
        """Why this target: a `placement.Reason`."""
        self.granted_at = granted_at
        self.queue_wait_s = queue_wait_s
        self.predicted_ttft_s: float | None = None
        """From the grant."""
        self.parts_ms: tuple[float, float] | None = None
        """What an engine as first thought of would take: for its steps, and for the prompt's own
        tokens. None where others' prompts were ahead of it."""
        self.step_ms = 0.0
        """The same of one step while it answers: the mean of its first and its last."""
        self.prefill_share = 0.0
        """Of its target's time when it began to answer."""
        self.candidates = 1
        """Workers it was chosen from."""
        self.fair_tag = 0.0
        """Its team's start tag when it was granted."""
        self.first_token_at: float | None = None
        """None too if it was only assumed, for an answer that comes whole."""
        self.had_first_token = False
        self.prompt_only = False
        """The prompt is computed here, the answer elsewhere."""
        self.ended_at: float | None = None
        self.released = False
        self.revocable = False
        self.revoked = False
        self._corrected = False
        self.ticket = ticket
        self._owner = owner

    def explain(self) -> str:
        """Why it is where it is, for a client that asks."""
        parts = [
            f"worker={self.target}",
            f"reason={self.reason}",
            f"candidates={self.candidates}",
            f"hit_tokens={self.claim.hit_tokens}",
            f"queue_wait_s={self.queue_wait_s:.4f}",
            f"fair_tag={self.fair_tag:.0f}",
        ]
        if self.predicted_ttft_s is not None:
            parts.append(f"predicted_ttft_s={self.predicted_ttft_s:.4f}")
        return "; ".join(parts)

    def first_token(self, now: float) -> None:
        """The engine is past the prompt."""
        if not self.had_first_token and not self.released:
            self.first_token_at = now
            self._owner.lease_answers(self)

    def assume_first_token(self) -> None:
        """An answer that comes whole does not say when it began: by now it should have."""
        if not self.had_first_token and not self.released:
            self._owner.lease_answers(self)

    def release(self) -> None:
        if not self.released:
            self.released = True
            self._owner.lease_ended(self)

    def correct(self, usage: Usage) -> None:
        """What the request cost in the end, before or after release: the team's share follows."""
        if not self._corrected:
            self._corrected = True
            self._owner.lease_billed(self, usage)


class LeaseOwner:
    """Who keeps the account: told of each event once."""

    __slots__ = ()

    def lease_answers(self, lease: Lease) -> None:
        raise NotImplementedError

    def lease_ended(self, lease: Lease) -> None:
        raise NotImplementedError

    def lease_billed(self, lease: Lease, usage: Usage) -> None:
        raise NotImplementedError
