"""A machine with GPUs, through the one seam that inferd has to NVIDIA's library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from inferd.workers.nvml import GpuEvent, GpuInfo, GpuLostError, GpuReading

GIB = 1_073_741_824


class FakeGpuLibrary:
    """`pairs` are joined by NVLink; the first half of the devices is on one socket."""

    def __init__(self, count: int, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self.infos = [
            GpuInfo(n, f"GPU-{n:04}", "H100", 80 * GIB, numa=n * 2 // count) for n in range(count)
        ]
        self.readings = {info.uuid: GpuReading(0, 40, 0.0, 0) for info in self.infos}
        self.lost: set[str] = set()
        self.reported: list[GpuEvent] = []
        self._pairs = {frozenset(pair) for pair in pairs}

    def set(self, index: int, **changes: object) -> None:
        """Change what one device says of itself."""
        uuid = self.infos[index].uuid
        self.readings[uuid] = replace(self.readings[uuid], **changes)  # type: ignore[arg-type]

    def report(self, index: int, xid: int) -> None:
        self.reported.append(GpuEvent(self.infos[index].uuid, xid))

    def inventory(self) -> list[GpuInfo]:
        return list(self.infos)

    def read(self, uuid: str) -> GpuReading:
        if uuid in self.lost:
            raise GpuLostError
        return self.readings[uuid]

    def closeness(self, one: str, other: str) -> int:
        a, b = (next(i for i in self.infos if i.uuid == uuid) for uuid in (one, other))
        if frozenset({a.index, b.index}) in self._pairs:
            return 6
        return 3 if a.numa == b.numa else 1

    def events(self) -> list[GpuEvent]:
        found, self.reported = self.reported, []
        return found
