"""What an engine environment consists of, per device: exact packages, Pythons, disk space.

The pins are in `recipes/*.txt`, one `name==version` a line, so that pip can read them too.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "recipes"
_PIN: Final = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[a-z0-9.+!]+)")


class Device(StrEnum):
    """What the engine computes on."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class Pin:
    """One package at exactly one version; `name` is in its normal form (lower case, hyphens)."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"

    def allows(self, version: str) -> bool:
        """`version` is the pinned one, or a local build of it such as 2.13.0+cpu."""
        return version == self.version or version.startswith(f"{self.version}+")


@dataclass(frozen=True)
class Recipe:
    """How to make an environment. Pins are read when first asked for."""

    device: Device
    file: Path
    pythons: tuple[tuple[int, int], ...]
    """Versions for which every pin has a built package, the best one first."""
    disk_bytes: int
    """What a finished environment takes, with what python adds when the engine first runs."""
    closed: bool
    """The pins are everything: pip must not follow what the packages declare."""
    large: frozenset[str] = frozenset()
    """Unpacking these takes as long as all the others: pip is single-threaded, so two run."""
    extras: frozenset[str] = frozenset()
    """Parts that were asked for beside what every engine has."""

    @cached_property
    def pins(self) -> tuple[Pin, ...]:
        chosen = (extra_pins(self.device, name) for name in sorted(self.extras))
        return (*self._own_pins, *(pin for pins in chosen for pin in pins))

    @cached_property
    def digest(self) -> str:
        """Names this exact recipe, extras apart; another one needs other packages."""
        return hashlib.sha256("\n".join(map(str, self._own_pins)).encode()).hexdigest()

    @cached_property
    def _own_pins(self) -> tuple[Pin, ...]:
        lines = (line.partition("#")[0].strip() for line in self._text().splitlines())
        return tuple(_pin(line) for line in lines if line)

    def including(self, extras: frozenset[str]) -> Recipe:
        """The same with more parts."""
        return replace(self, extras=self.extras | extras)

    def pin(self, name: str) -> Pin:
        return next(pin for pin in self.pins if pin.name == name)

    def _text(self) -> str:
        return self.file.read_text(encoding="utf-8")


SPLIT: Final = "split"
"""What moves KV caches between workers that compute prompts and those that decode."""
_EXTRAS: Final = {
    Device.CPU: {SPLIT: ("mooncake-transfer-engine-non-cuda==0.3.13.post1",)},
    Device.CUDA: {SPLIT: ("mooncake-transfer-engine-cuda13==0.3.14",)},
}
EXTRAS: Final = (SPLIT,)


def extra_pins(device: Device, name: str) -> tuple[Pin, ...]:
    """The packages of one extra."""
    return tuple(map(_pin, _EXTRAS[device][name]))


def _pin(line: str) -> Pin:
    match = _PIN.fullmatch(line)
    if match is None:
        raise ValueError(f"not an exact pin: {line!r}")
    return Pin(match["name"], match["version"])


RECIPES: Final = {
    Device.CPU: Recipe(
        device=Device.CPU,
        file=FOLDER / "cpu.txt",
        pythons=((3, 12), (3, 11), (3, 13)),
        disk_bytes=2_800_000_000,
        closed=True,
        large=frozenset({"scipy", "sglang", "torch", "torchvision", "transformers", "triton"}),
    ),
    Device.CUDA: Recipe(
        device=Device.CUDA,
        file=FOLDER / "cuda.txt",
        pythons=((3, 12), (3, 11)),
        disk_bytes=11_000_000_000,
        closed=False,
    ),
}
