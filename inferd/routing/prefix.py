"""A prompt's prefix as chained block keys: equal key, equal whole prefix up to that block.

A block is a fixed number of bytes, 64 tokens at the estimator's start ratio. Not the learnt ratio:
each move of it would rename every block, and all that is known of every cache would be lost. Tokens
per block follow from each prompt's own estimate instead. Pool and cache scope (the team, unless it
is shared) are in the seed. Long messages are hashed once: their keys are kept, within bounds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from xxhash import xxh3_64_intdigest, xxh3_128_digest

from inferd.inference import NO_PREFIX, Prefix

BLOCK_TOKENS: Final = 64
BLOCK_BYTES: Final = 224
BLOCKS_MAX: Final = 4_096
"""Of one prompt: about 260,000 tokens. What comes behind them tells no targets apart any more."""
REMEMBERED_BYTES: Final = 2_048
"""Messages of at least this length are remembered: a shorter one is hashed as quickly."""
REMEMBERED_BLOCKS_MAX: Final = 131_072
"""Keys kept for remembered messages, all together."""

_State = tuple[int, bytes]


class PrefixHasher:
    """Makes prefixes. Owns the keys of long messages that were seen before."""

    def __init__(self) -> None:
        self._remembered: OrderedDict[tuple[int, bytes, bytes], tuple[tuple[int, ...], _State]] = (
            OrderedDict()
        )
        self._blocks = 0
        self.found = 0
        """Long messages whose keys were remembered."""

    def prefix(
        self, seed: str, parts: Iterable[bytes], prompt_tokens: int, hint: str | None = None
    ) -> Prefix:
        """Of a prompt whose `parts` (tools, then messages) come in the order of the template.

        `hint`: the client's name for prompts that begin alike.
        """
        named = xxh3_64_intdigest(f"{seed}\0{hint}".encode()) if hint else None
        state: _State = (xxh3_64_intdigest(seed.encode()), b"")
        keys: list[int] = []
        size = 0
        for part in parts:
            size += len(part)
            if len(keys) >= BLOCKS_MAX:
                continue
            if len(part) < REMEMBERED_BYTES:
                more, state = _chain(state, part)
            else:
                more, state = self._recall(state, part)
            keys += more
        if not keys:
            return Prefix(hint=named) if hint else NO_PREFIX
        tokens = max(1, prompt_tokens) * BLOCK_BYTES / size
        return Prefix(tuple(keys[:BLOCKS_MAX]), tokens, named)

    def _recall(self, state: _State, part: bytes) -> tuple[tuple[int, ...], _State]:
        name = (*state, xxh3_128_digest(part))
        known = self._remembered.get(name)
        if known is not None:
            self._remembered.move_to_end(name)
            self.found += 1
            return known
        made = _chain(state, part)
        self._remembered[name] = made
        self._blocks += len(made[0])
        while self._blocks > REMEMBERED_BLOCKS_MAX:
            _, (dropped, _) = self._remembered.popitem(last=False)
            self._blocks -= len(dropped)
        return made


def _chain(state: _State, part: bytes) -> tuple[tuple[int, ...], _State]:
    """The keys of the blocks that are full with `part`, and where the next part goes on."""
    key, rest = state
    data = rest + part if rest else part
    keys = []
    end = 0
    for end in range(BLOCK_BYTES, len(data) + 1, BLOCK_BYTES):
        key = xxh3_64_intdigest(data[end - BLOCK_BYTES : end], seed=key)
        keys.append(key)
    return tuple(keys), (key, data[end:])
