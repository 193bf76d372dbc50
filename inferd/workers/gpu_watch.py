"""Looks after the GPUs: reads them, and puts those in quarantine that cannot be trusted.

A device is not trusted that has left the bus, has had an error that NVIDIA calls the hardware's,
has lost data in its memory since inferd looked first, has no spare rows left, or stays so hot that
it slows itself down. Whoever has it is drained; who lifts the quarantine is a person, but for
memory that was given back after all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final

from inferd.metrics import Metrics
from inferd.workers.gpus import MEMORY_KEPT, Gpus
from inferd.workers.nvml import GpuEvent, GpuLibrary, GpuLostError, GpuReading

log = logging.getLogger(__name__)

LOOK_S: Final = 5.0
HOT_LOOKS_MAX: Final = 3
"""A device that is too hot in so many looks in a row stays so."""
HARDWARE_XIDS: Final = {
    48: "an error in its memory that cannot be corrected",
    61: "its microcontroller has failed",
    62: "its microcontroller has halted",
    64: "a broken row of its memory cannot be replaced",
    74: "an error of NVLink",
    79: "it has fallen off the bus",
    94: "an error in its memory, contained in one program",
    95: "an error in its memory, not contained",
    119: "its system processor does not answer",
    120: "its system processor has failed",
    140: "an error in its memory that was not recovered",
}
"""Others are mostly a program's own faults: counted, and not held against the device."""


@dataclass(frozen=True, slots=True)
class _Look:
    readings: dict[str, GpuReading]
    lost: list[str]
    events: list[GpuEvent]


class GpuWatch:
    """`run` is the service, where there is a library."""

    def __init__(self, gpus: Gpus, metrics: Metrics) -> None:
        self._gpus = gpus
        self._metrics = metrics
        self._ecc_first: dict[str, int] = {}
        self._hot: Counter[str] = Counter()
        self._by_uuid = {info.uuid: name for name, info in gpus.infos.items()}

    async def run(self) -> None:
        """Look until cancelled. Does nothing where there is no library."""
        library = self._gpus.library
        while True:
            if library is not None:
                self._judge(await asyncio.to_thread(self._look, library))
            await asyncio.sleep(LOOK_S)

    def _look(self, library: GpuLibrary) -> _Look:
        """In a thread: touches nothing of the loop's."""
        readings, lost = {}, []
        for uuid, name in self._by_uuid.items():
            try:
                readings[name] = library.read(uuid)
            except GpuLostError:
                lost.append(name)
        return _Look(readings, lost, library.events())

    def _judge(self, look: _Look) -> None:
        gpus = self._gpus
        for name, reading in look.readings.items():
            gpus.readings[name] = reading
            self._judge_reading(name, reading)
        for name in look.lost:
            gpus.readings.pop(name, None)
            self._condemn(name, "lost", "the driver cannot reach it any more")
        for event in look.events:
            name_of = self._by_uuid.get(event.uuid)
            if name_of is None:
                continue
            self._metrics.gpu[name_of].events["xid"].inc()
            log.warning("GPU %s: Xid %d", name_of, event.xid, extra={"gpu": name_of})
            if told := HARDWARE_XIDS.get(event.xid):
                self._condemn(name_of, "hardware", f"Xid {event.xid}: {told}")
        for name in gpus.infos:
            self._metrics.gpu[name].show(gpus.readings.get(name), name in gpus.quarantined)

    def _judge_reading(self, name: str, reading: GpuReading) -> None:
        errors = reading.ecc_uncorrected
        if errors is not None and errors > self._ecc_first.setdefault(name, errors):
            more = errors - self._ecc_first[name]
            self._condemn(name, "ecc", f"{more} uncorrected errors in its memory since the start")
        if reading.remap_failed:
            self._condemn(name, "remap", "a broken row of its memory cannot be replaced")
        self._hot[name] = self._hot[name] + 1 if reading.overheated else 0
        if self._hot[name] >= HOT_LOOKS_MAX:
            degrees = "" if reading.temperature_c is None else f" ({reading.temperature_c} °C)"
            self._condemn(name, "heat", f"it is so hot{degrees} that it slows itself down")
        kept = self._gpus.quarantined.get(name, "").startswith(MEMORY_KEPT)
        if kept and not self._gpus.keeps_memory(name, reading):
            self._gpus.lift(name)

    def _condemn(self, name: str, kind: str, reason: str) -> None:
        if name not in self._gpus.quarantined:
            self._metrics.gpu[name].events[kind].inc()
            self._gpus.quarantine(name, reason)
