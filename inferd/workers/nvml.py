"""What NVIDIA's library tells of GPUs, behind a seam: `GpuLibrary` is all that inferd asks of it.

Owns the library's handles. Calls block for some milliseconds, a second when a device is in trouble:
on the loop only before inferd serves. What a device cannot tell is None, never an error; a device
that is gone is `GpuLostError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

NVLINK: Final = 6
_CLOSENESS: Final = {0: 5, 10: 5, 20: 4, 30: 3, 40: 2, 50: 1}
"""Of NVML's levels of topology: one board, one switch, several, one bridge, one node, else."""
EVENTS_MAX: Final = 256
"""Taken in one look; what is more comes in the next."""


class GpuLostError(Exception):
    """The driver cannot reach a device that was there."""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """What does not change. `index` counts in the order of the bus; `numa` is its memory node."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    numa: int | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """As of now. `utilization` is 0 to 1; `ecc_uncorrected` counts since the driver was loaded."""

    memory_used_bytes: int
    temperature_c: int | None = None
    utilization: float | None = None
    ecc_uncorrected: int | None = None
    remap_failed: bool = False
    """A broken row of memory could not be replaced by a spare one."""
    overheated: bool = False
    """The hardware itself slows it down, because it is too hot."""


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """An error that the driver has reported. `xid` is its code in NVIDIA's catalogue."""

    uuid: str
    xid: int


class GpuLibrary(Protocol):
    """The seam. Tests fill it with a machine of their own; nothing else of it is made up."""

    def inventory(self) -> list[GpuInfo]: ...

    def read(self, uuid: str) -> GpuReading:
        """Raises GpuLostError."""

    def closeness(self, one: str, other: str) -> int:
        """How near two devices are: `NVLINK`, then 5 (one switch) to 1 (other sockets)."""

    def events(self) -> list[GpuEvent]:
        """What was reported since the last call. Waits for nothing."""


def open_library() -> GpuLibrary | None:
    """NVIDIA's library, if this machine has it and a driver that answers."""
    import pynvml  # noqa: PLC0415 - 30 ms, which most commands need not spend

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return Nvml(pynvml)


class Nvml:
    """The seam on NVIDIA's bindings."""

    def __init__(self, pynvml: Any) -> None:  # noqa: ANN401 - a module without types
        """`pynvml` has been initialised."""
        self._nvml = pynvml
        self._handles: dict[str, Any] = {}
        self._event_set: Any = None

    def inventory(self) -> list[GpuInfo]:
        nvml = self._nvml
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            except nvml.NVMLError:
                continue  # it is on the bus, but cannot be used
            self._handles[uuid] = handle
            memory = self._asked(nvml.nvmlDeviceGetMemoryInfo, handle)
            found.append(
                GpuInfo(
                    index=index,
                    uuid=uuid,
                    name=_text(self._asked(nvml.nvmlDeviceGetName, handle) or "GPU"),
                    memory_bytes=0 if memory is None else int(memory.total),
                    numa=self._asked(nvml.nvmlDeviceGetNumaNodeId, handle),
                )
            )
        self._listen()
        return found

    def read(self, uuid: str) -> GpuReading:
        nvml, handle = self._nvml, self._handles[uuid]
        memory = self._asked(nvml.nvmlDeviceGetMemoryInfo, handle)
        use = self._asked(nvml.nvmlDeviceGetUtilizationRates, handle)
        rows = self._asked(nvml.nvmlDeviceGetRemappedRows, handle)
        clocks = self._asked(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        return GpuReading(
            memory_used_bytes=0 if memory is None else int(memory.used),
            temperature_c=self._asked(
                nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU
            ),
            utilization=None if use is None else use.gpu / 100,
            ecc_uncorrected=self._asked(
                nvml.nvmlDeviceGetTotalEccErrors,
                handle,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            remap_failed=rows is not None and bool(rows[3]),
            overheated=bool((clocks or 0) & nvml.nvmlClocksThrottleReasonHwThermalSlowdown),
        )

    def closeness(self, one: str, other: str) -> int:
        nvml = self._nvml
        pair = self._handles[one], self._handles[other]
        linked = self._asked(nvml.nvmlDeviceGetP2PStatus, *pair, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if linked == nvml.NVML_P2P_STATUS_OK:
            return NVLINK
        level = self._asked(nvml.nvmlDeviceGetTopologyCommonAncestor, *pair)
        return 1 if level is None else _CLOSENESS.get(int(level), 1)

    def events(self) -> list[GpuEvent]:
        nvml, found = self._nvml, list[GpuEvent]()
        while self._event_set is not None and len(found) < EVENTS_MAX:
            try:
                event = nvml.nvmlEventSetWait_v2(self._event_set, 0)
                uuid = _text(nvml.nvmlDeviceGetUUID(event.device))
            except nvml.NVMLError:  # nothing has come, or the device cannot even say who it is
                break
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                found.append(GpuEvent(uuid, int(event.eventData)))
        return found

    def _listen(self) -> None:
        """Have the driver keep its errors for us, where it can."""
        nvml = self._nvml
        try:
            self._event_set = nvml.nvmlEventSetCreate()
            for handle in self._handles.values():
                nvml.nvmlDeviceRegisterEvents(
                    handle, nvml.nvmlEventTypeXidCriticalError, self._event_set
                )
        except nvml.NVMLError:
            self._event_set = None

    def _asked(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
        """The answer; None if this device or driver has none."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError_GpuIsLost as error:
            raise GpuLostError from error
        except self._nvml.NVMLError:
            return None


def _text(name: str | bytes) -> str:
    """Old bindings give bytes."""
    return name.decode() if isinstance(name, bytes) else name
