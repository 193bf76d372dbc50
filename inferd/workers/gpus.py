"""The GPUs of this node, and which of them an engine of ours has: no device is given out twice.

Owns the claims and the quarantine. A claim lasts as long as its scope, which is the life of the
engine's processes, and until the memory is seen free; it is released once, on every way out. A
device in quarantine is not given out. Who is near whom comes from NVIDIA's library; without it
neighbours by number are taken for near, and what other programs do is not seen.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import combinations, takewhile
from math import comb
from pathlib import Path
from typing import Final

from inferd import clock
from inferd.errors import NotFound, ProvisionError
from inferd.provision import machine
from inferd.workers.nvml import GpuInfo, GpuLibrary, GpuLostError, GpuReading, open_library

log = logging.getLogger(__name__)

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"
BY_BUS: Final = "PCI_BUS_ID"
"""The order in which the library counts; CUDA's own is by speed."""
CHOICES_MAX: Final = 1_000
"""Sets of devices that are compared; 12 devices have fewer."""
FREE_BYTES_SLACK: Final = 1_073_741_824
"""More than was in use before by this much: the memory has not been given back."""
RETURN_S_MAX: Final = 30.0
RETURN_LOOK_S: Final = 0.25
MEMORY_KEPT: Final = "its memory was not given back"
_NONE: Final = frozenset({"", "-1"})
"""In a list of devices, these end it."""


class TooFewGpus(ProvisionError):
    """So many devices are not free now: `needed`."""

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


class Gpus:
    """`devices` by the names that `CUDA_VISIBLE_DEVICES` takes, neighbours next to each other."""

    def __init__(
        self,
        devices: Iterable[str],
        told: str = "this machine has",
        library: GpuLibrary | None = None,
    ) -> None:
        """`told` begins the words that say how many there are."""
        self.devices = tuple(devices)
        self.library = library
        self.readings: dict[str, GpuReading] = {}
        """The last reading of each device, by name; `GpuWatch` keeps them fresh."""
        self.quarantined: dict[str, str] = {}
        """Why a device is not given out, by name."""
        self._told = told
        self._free = set(range(len(self.devices)))
        self._held: dict[str, set[int]] = {}
        self._used_before: dict[str, int] = {}
        self.on_release: Callable[[], None] | None = None
        """Called at the end of each claim, and when a quarantine is lifted. Must not raise."""
        self.on_quarantine: Callable[[str, str], None] | None = None
        """Called with a device and the reason. Must not raise."""
        self.note: Callable[[str, str | None], None] | None = None
        """Writes down a device's reason, or that there is none any more. Must not raise."""
        inventory = [] if library is None else library.inventory()
        self.infos = {name: info for name in self.devices if (info := _info_of(name, inventory))}
        """What the library knows of each device, by name."""
        self._closeness = self._look_around()
        self._look_first()

    @classmethod
    def of_this_node(
        cls,
        root: Path = Path("/"),
        environ: Mapping[str, str] | None = None,
        library: GpuLibrary | None = None,
    ) -> Gpus:
        """All devices of the machine; if this process was given only some of them, those."""
        if library is None and root == Path("/"):
            library = open_library()
        given = (os.environ if environ is None else environ).get(VISIBLE)
        if given is None:
            known = machine.look(root).gpus if library is None else library.inventory()
            return cls(map(str, range(len(known))), library=library)
        names = [name.strip() for name in given.split(",")]
        named = takewhile(lambda name: name not in _NONE, names)
        return cls(named, f"{VISIBLE} names", library)

    @property
    def count(self) -> int:
        """How many there are, claimed or not."""
        return len(self.devices)

    @property
    def free(self) -> int:
        """How many nobody has claimed, and that may be claimed."""
        return len(self._available())

    def is_free(self, device: str) -> bool:
        return self.devices.index(device) in self._available()

    def identity(self, device: str) -> str:
        """What it is called after a restart too: its UUID, if the library knows it."""
        return info.uuid if (info := self.infos.get(device)) else device

    def remember(self, reasons: Mapping[str, str]) -> None:
        """Devices, by identity, that an earlier process has put in quarantine stay there."""
        for device in self.devices:
            if reason := reasons.get(self.identity(device)):
                self.quarantined[device] = reason
                log.warning("GPU %s is still in quarantine: %s", device, reason)

    def quarantine(self, device: str, reason: str) -> None:
        """Give it out no more, and tell whoever has it. The first reason stays."""
        if device in self.quarantined:
            return
        self.quarantined[device] = reason
        if self.note is not None:
            self.note(self.identity(device), reason)
        log.error("GPU %s is in quarantine: %s", device, reason, extra={"gpu": device})
        if self.on_quarantine is not None:
            self.on_quarantine(device, reason)

    def lift(self, device: str) -> None:
        """End its quarantine. Raises NotFound."""
        if device not in self.devices:
            known = ", ".join(self.devices) or "none"
            raise NotFound(f"There is no GPU {device!r}; there are: {known}.")
        if self.quarantined.pop(device, None) is not None:
            log.info("GPU %s is out of quarantine", device, extra={"gpu": device})
            if self.note is not None:
                self.note(self.identity(device), None)
            if self.on_release is not None:
                self.on_release()

    def held(self, holder: str) -> int:
        """How many are held for it."""
        return len(self._held.get(holder, ()))

    def hold(self, holder: str, devices: Iterable[str]) -> None:
        """Keep these from being claimed: an engine that we did not start may be on them."""
        named = set(devices)
        taken = {i for i in self._free if self.devices[i] in named}
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
        """`number` devices for the scope, near each other if there are; 0 are always to be had.

        `holder`: exactly those that are held for it.

        Raises:
            TooFewGpus: fewer are free.
        """
        if holder in self._held and len(self._held[holder]) == number:
            taken = self._held.pop(holder)
        else:
            taken = self._take(number)
            for index in taken:
                self._note_use(self.devices[index])
        self._free -= taken
        try:
            yield tuple(self.devices[index] for index in sorted(taken))
        finally:
            self._free |= taken
            if taken and self.on_release is not None:
                self.on_release()

    async def returned(self, devices: Iterable[str]) -> None:
        """Until an ended engine's memory is seen free; where it is not in time: quarantine."""
        deadline = clock.monotonic() + RETURN_S_MAX
        for device in devices:
            while (used := await self._kept_bytes(device)) is not None:
                if clock.monotonic() >= deadline:
                    gib = used / 2**30
                    self.quarantine(
                        device,
                        f"{MEMORY_KEPT}: {gib:.1f} GiB are in use {RETURN_S_MAX:g} s after its"
                        " engine has ended (see `nvidia-smi`)",
                    )
                    break
                await asyncio.sleep(RETURN_LOOK_S)

    def keeps_memory(self, device: str, reading: GpuReading) -> bool:
        """Whether more is in use than before its last engine."""
        allowed = self._used_before.get(device, 0) + FREE_BYTES_SLACK
        return reading.memory_used_bytes > allowed

    async def _kept_bytes(self, device: str) -> int | None:
        """How much is in use that should not be; None: it is free, or nobody can tell."""
        if self.library is None or (info := self.infos.get(device)) is None:
            return None
        try:
            reading = await asyncio.to_thread(self.library.read, info.uuid)
        except GpuLostError:
            return None  # which its watch finds too, and quarantines it for
        # Noted: the next claim comes before the watch looks again, and must not take the memory of
        # the engine that has just ended for somebody else's.
        self.readings[device] = reading
        return reading.memory_used_bytes if self.keeps_memory(device, reading) else None

    def _note_use(self, device: str) -> None:
        """What others have in use now is not what an engine of ours must give back."""
        if reading := self.readings.get(device):
            self._used_before[device] = reading.memory_used_bytes

    def _available(self) -> set[int]:
        return {index for index in self._free if self.devices[index] not in self.quarantined}

    def _take(self, number: int) -> set[int]:
        if number > self.free:
            gpus = "GPU" if number == 1 else "GPUs"
            free = f"{self.free} {'is' if self.free == 1 else 'are'} free"
            bad = f", {len(self.quarantined)} in quarantine" if self.quarantined else ""
            told = f"it needs {number} {gpus}, {self._told} {self.count}, {free}{bad}"
            raise TooFewGpus(told, number)
        uneven = len(set(self._closeness.values())) > 1
        return self._nearest(number) if uneven else self._gap(number)

    def _nearest(self, number: int) -> set[int]:
        """Those nearest to each other; of such, those least near to the rest, which stays whole."""
        free = sorted(self._available())
        near = self._closeness
        if comb(len(free), number) <= CHOICES_MAX:
            choices = [*combinations(free, number)]
        else:
            choices = [(*free[at : at + number],) for at in range(len(free) - number + 1)]

        def rank(chosen: Iterable[int]) -> tuple[int, int, int]:
            chosen = sorted(chosen)
            within = [near[pair] for pair in combinations(chosen, 2)]
            rest = [other for other in free if other not in chosen]
            around = sum(near[min(a, b), max(a, b)] for a in chosen for b in rest)
            return -min(within, default=0), -sum(within), around

        return set(min(choices, key=rank))

    def _gap(self, number: int) -> set[int]:
        """The shortest gap that holds them, so that longer ones stay whole; else the first."""
        gaps = [gap for gap in self._gaps() if len(gap) >= number]
        chosen = min(gaps, key=len) if gaps else sorted(self._available())
        return set(chosen[:number])

    def _gaps(self) -> list[list[int]]:
        gaps: list[list[int]] = []
        for index in sorted(self._available()):
            if gaps and gaps[-1][-1] == index - 1:
                gaps[-1].append(index)
            else:
                gaps.append([index])
        return gaps

    def _look_first(self) -> None:
        """What others have in use before any engine of ours starts is theirs."""
        if self.library is None:
            return
        for name, info in self.infos.items():
            with suppress(GpuLostError):
                self.readings[name] = self.library.read(info.uuid)

    def _look_around(self) -> dict[tuple[int, int], int]:
        """How near any two devices are; {} when that is not known of all."""
        if self.library is None or len(self.infos) < self.count:
            return {}
        uuids = [self.infos[name].uuid for name in self.devices]
        try:
            return {
                (a, b): self.library.closeness(uuids[a], uuids[b])
                for a, b in combinations(range(self.count), 2)
            }
        except GpuLostError:
            return {}


def _info_of(name: str, inventory: Iterable[GpuInfo]) -> GpuInfo | None:
    """By number, or by the beginning of its UUID, as CUDA takes both."""
    for info in inventory:
        if name == str(info.index) or (name.startswith("GPU-") and info.uuid.startswith(name)):
            return info
    return None
