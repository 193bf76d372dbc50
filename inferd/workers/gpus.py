"""The GPUs of this node, and which of them an engine of ours has: no device is given out twice.

Owns the claims. A claim lasts as long as its scope, which is the life of the engine's processes;
it is released once, on every way out. What other programs do on the devices is not seen here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Final

from inferd.errors import ProvisionError
from inferd.provision import machine

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_NONE: Final = frozenset({"", "-1"})
"""In a list of devices, these end it."""


class TooFewGpus(ProvisionError):
    """So many devices are not free now: `needed`."""

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


class Gpus:
    """`devices` by the names that `CUDA_VISIBLE_DEVICES` takes, neighbours next to each other."""

    def __init__(self, devices: Iterable[str], told: str = "this machine has") -> None:
        """`told` begins the words that say how many there are."""
        self._devices = tuple(devices)
        self._told = told
        self._free = set(range(len(self._devices)))
        self._held: dict[str, set[int]] = {}
        self.on_release: Callable[[], None] | None = None
        """Called at the end of each claim. Must not raise."""

    @classmethod
    def of_this_node(cls, root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> Gpus:
        """All devices of the machine; if this process was given only some of them, those."""
        given = (os.environ if environ is None else environ).get(VISIBLE)
        if given is None:
            return cls(map(str, range(len(machine.look(root).gpus))))
        names = [name.strip() for name in given.split(",")]
        return cls(takewhile(lambda name: name not in _NONE, names), f"{VISIBLE} names")

    @property
    def count(self) -> int:
        """How many there are, claimed or not."""
        return len(self._devices)

    @property
    def free(self) -> int:
        """How many nobody has claimed."""
        return len(self._free)

    def held(self, holder: str) -> int:
        """How many are held for it."""
        return len(self._held.get(holder, ()))

    def hold(self, holder: str, devices: Iterable[str]) -> None:
        """Keep these from being claimed: an engine that we did not start may be on them."""
        named = set(devices)
        taken = {i for i in self._free if self._devices[i] in named}
        self._held[holder] = taken
        self._free -= taken

    def let_go(self, holder: str) -> None:
        """What was held for it is free, unless somebody has claimed it as `holder`."""
        taken = self._held.pop(holder, set())
        self._free |= taken
        if taken and self.on_release is not None:
            self.on_release()

    @contextmanager
    def claim(self, number: int, holder: str = "") -> Iterator[tuple[str, ...]]:
        """`number` devices for the scope, neighbours if there are; 0 are always to be had.

        `holder`: exactly those that are held for it.

        Raises:
            TooFewGpus: fewer are free.
        """
        if holder in self._held and len(self._held[holder]) == number:
            self._free |= self._held[holder]
            taken = self._held.pop(holder)
        else:
            taken = self._take(number)
        self._free -= taken
        try:
            yield tuple(self._devices[index] for index in sorted(taken))
        finally:
            self._free |= taken
            if taken and self.on_release is not None:
                self.on_release()

    def _take(self, number: int) -> set[int]:
        if number > self.free:
            gpus = "GPU" if number == 1 else "GPUs"
            free = f"{self.free} {'is' if self.free == 1 else 'are'} free"
            raise TooFewGpus(f"it needs {number} {gpus}, {self._told} {self.count}, {free}", number)
        return self._choose(number)

    def _choose(self, number: int) -> set[int]:
        """The shortest gap that holds them, so that longer ones stay whole; else the first."""
        gaps = [gap for gap in self._gaps() if len(gap) >= number]
        chosen = min(gaps, key=len) if gaps else sorted(self._free)
        return set(chosen[:number])

    def _gaps(self) -> list[list[int]]:
        gaps: list[list[int]] = []
        for index in sorted(self._free):
            if gaps and gaps[-1][-1] == index - 1:
                gaps[-1].append(index)
            else:
                gaps.append([index])
        return gaps
