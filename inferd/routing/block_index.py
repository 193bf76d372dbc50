"""Which target was sent which prompt block: our own dispatch log, no engine is asked.

Owns `owner[block] -> bit set of targets` and one least-recently-used list per target, as long as
that target's KV cache. A block's name is a chained hash, so a known block means a known prefix.
Memory is bounded by the sum of the lists and by `BLOCKS_MAX`; a target that goes takes its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

BLOCKS_MAX: Final = 262_144
"""Blocks kept for one target: 16.8 million tokens, far beyond the KV cache of one engine."""


class BlockIndex:
    """`bit` numbers a target; numbers of targets that are gone are used again."""

    __slots__ = ("_free", "_lists", "_owner", "changes")

    def __init__(self) -> None:
        self._owner: dict[int, int] = {}
        self._lists: dict[int, OrderedDict[int, None]] = {}
        self._free: list[int] = []
        self.changes = 0
        """Grows with every change: depths looked up at an older count may be wrong."""

    def __len__(self) -> int:
        """Different blocks known."""
        return len(self._owner)

    def add_target(self) -> int:
        bit = self._free.pop() if self._free else len(self._lists)
        self._lists[bit] = OrderedDict()
        return bit

    def remove_target(self, bit: int) -> None:
        blocks = self._lists.pop(bit)
        for block in blocks:
            self._disown(block, bit)
        self._free.append(bit)
        self.changes += 1

    def held(self, bit: int) -> int:
        """Blocks that a target is believed to hold."""
        return len(self._lists[bit])

    def insert(self, bit: int, blocks: Sequence[int], capacity: int) -> None:
        """The prompt was sent there; the oldest blocks beyond `capacity` are gone.

        From its end to its start, so that a prefix is never forgotten before what builds on it.
        """
        held, owner, flag = self._lists[bit], self._owner, 1 << bit
        for block in reversed(blocks):
            if block in held:
                held.move_to_end(block)
            else:
                held[block] = None
                owner[block] = owner.get(block, 0) | flag
        limit = min(capacity, BLOCKS_MAX)
        while len(held) > limit:
            block, _ = held.popitem(last=False)
            self._disown(block, bit)
        self.changes += 1

    def depths(self, blocks: Sequence[int]) -> dict[int, int]:
        """Leading blocks that each target holds, by bit; targets that hold none are left out."""
        owner = self._owner
        if not blocks or not (live := owner.get(blocks[0], 0)):
            return {}
        found: dict[int, int] = {}
        depth = 1
        for block in blocks[1:]:
            still = live & owner.get(block, 0)
            if still != live:
                _note(found, live ^ still, depth)
                live = still
                if not live:
                    return found
            depth += 1
        _note(found, live, depth)
        return found

    def holders(self, block: int) -> int:
        """The bits of the targets that were sent a block."""
        return self._owner.get(block, 0)

    def _disown(self, block: int, bit: int) -> None:
        left = self._owner[block] & ~(1 << bit)
        if left:
            self._owner[block] = left
        else:
            del self._owner[block]


def _note(found: dict[int, int], bits: int, depth: int) -> None:
    while bits:
        lowest = bits & -bits
        found[lowest.bit_length() - 1] = depth
        bits ^= lowest
