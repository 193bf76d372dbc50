"""KV memory: a pool of token slots and a prefix cache of whole blocks in it.

A block's name is a chained hash, so equal name means equal whole prefix (and equal isolation key).
Blocks of running requests are held; idle ones are evicted, deepest and least recently used first.
Invariant: held + idle blocks + private tokens never exceed the capacity.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class KvCache:
    """All counts in tokens. `page` is the block size in tokens."""

    def __init__(self, capacity: int, page: int, *, reuse: bool = True) -> None:
        self.capacity = capacity
        self.page = page
        self._reuse = reuse
        self._held: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._private = 0

    @property
    def used(self) -> int:
        """Tokens that belong to running requests."""
        return len(self._held) * self.page + self._private

    @property
    def evictable(self) -> int:
        return len(self._idle) * self.page

    @property
    def free(self) -> int:
        return self.capacity - self.used - self.evictable

    def names(self, tokens: Sequence[int], extra_key: str) -> list[int]:
        """Block names of every whole block of `tokens`."""
        name = hash(extra_key)
        page = self.page
        names = []
        for start in range(0, len(tokens) - page + 1, page):
            name = hash((name, *tokens[start : start + page]))
            names.append(name)
        return names

    def match(self, names: Sequence[int]) -> int:
        """How many leading blocks are in the cache."""
        if not self._reuse:
            return 0
        count = 0
        for name in names:
            if name not in self._held and name not in self._idle:
                break
            count += 1
        return count

    def hold(self, names: Sequence[int]) -> None:
        """Keep these cached blocks until `release`."""
        for name in names:
            self._idle.pop(name, None)
            self._held[name] = self._held.get(name, 0) + 1

    def release(self, names: Sequence[int]) -> None:
        """Let go; the deepest block becomes the oldest, so that it goes before its parents."""
        for name in reversed(names):
            count = self._held[name] - 1
            if count:
                self._held[name] = count
                continue
            del self._held[name]
            if self._reuse:
                self._idle[name] = None

    def take(self, tokens: int) -> bool:
        """Claim private token slots, evicting idle blocks if needed; False if there is no room."""
        if self.free + self.evictable < tokens:
            return False
        while self.free < tokens:
            self._idle.popitem(last=False)
        self._private += tokens
        return True

    def give(self, tokens: int) -> None:
        """Return private token slots."""
        self._private -= tokens

    def share(self, names: Sequence[int]) -> None:
        """Turn private tokens into held blocks, freeing those the cache already had."""
        self._private -= len(names) * self.page
        self.hold(names)

    def flush(self) -> None:
        """Drop everything that nobody holds."""
        self._idle.clear()
