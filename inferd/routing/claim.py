"""What a request asks of a target, in tokens, and what it claims there once it is placed. Pure.

`Asked` is made once per ticket. Which target it goes to decides how much of its prompt is cached
there, so a `Claim` is made for one placement.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferd.inference import NO_PREFIX, InferenceRequest, Prefix, Priority


@dataclass(slots=True)
class Asked:
    """One request as placement sees it. Tokens are estimates."""

    prompt_tokens: int
    output_tokens: int
    """Likely, of all choices."""
    choices: int = 1
    charged_tokens: int = 0
    """What its team is charged for them until the bill is there: as many as its answers have."""
    prefix: Prefix = NO_PREFIX
    is_batch: bool = False
    due: float = float("inf")
    """Loop time by which the first token is wanted."""
    own_s: float = 0.0
    """To its first token where most of it is held, if nothing were ahead of it."""
    candidates: int = 1
    """Targets it was last chosen from."""
    spills: bool = False
    """Its team has waited for warm targets long enough: any that is open will do."""
    depths: dict[int, int] | None = None
    """Blocks that targets hold, by bit, looked up when the index had `depths_at` changes."""
    depths_at: int = -1
    most_held_tokens: int = 0
    """Prompt tokens that the target holds which holds most, looked up with `depths`."""
    hinted: int = 0
    """Bits of the targets that were sent something under the same hint, looked up with `depths`."""
    adapter: str | None = None
    """What it needs of a target's engine, by the engine's name."""

    @classmethod
    def of(cls, request: InferenceRequest, answer_tokens: int, team_tokens: int) -> Asked:
        """How long an answer is on average, of this pool and to this team."""
        most = request.output_tokens_max
        return cls(
            prompt_tokens=request.prompt_tokens_estimated,
            output_tokens=min(answer_tokens, most) * request.choices,
            choices=request.choices,
            charged_tokens=min(team_tokens, most) * request.choices,
            prefix=request.prefix,
            is_batch=request.priority is Priority.BATCH,
            adapter=request.adapter.key if request.adapter else None,
        )

    def hit_tokens(self, bit: int) -> int:
        """Prompt tokens that the target holds. The last one is always computed."""
        if not self.depths:
            return 0
        return self._tokens_of(self.depths.get(bit, 0))

    def most_held(self) -> int:
        """Prompt tokens that some target holds, at most."""
        return self._tokens_of(max(self.depths.values())) if self.depths else 0

    def _tokens_of(self, depth: int) -> int:
        held = int(depth * self.prefix.block_tokens)
        return max(0, held if held < self.prompt_tokens else self.prompt_tokens - 1)

    def claim(self, bit: int) -> Claim:
        """What it takes there."""
        depth = self.depths.get(bit, 0) if self.depths else 0
        if not depth:
            return Claim(self.prompt_tokens, self.output_tokens, self.choices)
        hit, pin = self._tokens_of(depth), self.prefix.keys[depth - 1]
        return Claim(self.prompt_tokens, self.output_tokens, self.choices, hit, pin)


class Claim:
    """What one placement takes. Never changed once made: what was counted is given back."""

    __slots__ = (
        "choices",
        "held_tokens",
        "hit_tokens",
        "kv_tokens",
        "miss_tokens",
        "output_tokens",
        "pin",
        "prompt_tokens",
        "tokens",
    )

    def __init__(
        self,
        prompt_tokens: int,
        output_tokens: int,
        choices: int = 1,
        hit_tokens: int = 0,
        pin: int | None = None,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.choices = choices
        self.hit_tokens = hit_tokens
        self.pin = pin
        """Key of the deepest block that was there already."""
        self.tokens = prompt_tokens + output_tokens
        self.miss_tokens = prompt_tokens - hit_tokens
        self.held_tokens = prompt_tokens * choices + output_tokens // 2
        """Context on average, while it runs."""
        self.kv_tokens = self.miss_tokens + output_tokens
        """KV tokens beside those of the prefix that was there."""
