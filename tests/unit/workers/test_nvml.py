"""The seam on NVIDIA's bindings: what a device cannot tell is None, what is gone is lost."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from inferd.workers.nvml import NVLINK, GpuLostError, Nvml


class Driver:
    """The bindings' names, with a driver of two devices; what is not known, it does not support."""

    def __init__(self) -> None:
        self.linked: int = pynvml.NVML_P2P_STATUS_OK
        self.lost = False
        self.events = [SimpleNamespace(device=1, eventType=8, eventData=79)]
        self._known: dict[str, Callable[..., object]] = {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda handle: b"GPU-%d" % handle,
            "nvmlDeviceGetP2PStatus": lambda *_: self.linked,
            "nvmlEventSetCreate": object,
            "nvmlDeviceRegisterEvents": lambda *_: None,
            "nvmlEventSetWait_v2": self._wait,
        }

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        if isinstance(real, type) or not callable(real):
            return real
        return self._known.get(name, self._unsupported)

    def _unsupported(self, *_: object) -> None:
        error = pynvml.NVML_ERROR_GPU_IS_LOST if self.lost else pynvml.NVML_ERROR_NOT_SUPPORTED
        raise pynvml.NVMLError(error)

    def _wait(self, *_: object) -> object:
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return self.events.pop()


def test_a_driver_that_tells_little_is_enough() -> None:
    driver = Driver()
    library = Nvml(driver)
    first, second = library.inventory()
    assert (first.uuid, first.name, first.memory_bytes, first.numa) == ("GPU-0", "GPU", 0, None)
    reading = library.read(second.uuid)
    assert reading.temperature_c is reading.utilization is reading.ecc_uncorrected is None
    assert (reading.remap_failed, reading.overheated) == (False, False)
    assert library.closeness("GPU-0", "GPU-1") == NVLINK
    driver.linked = 1
    assert library.closeness("GPU-0", "GPU-1") == 1
    assert [(event.uuid, event.xid) for event in library.events()] == [("GPU-1", 79)]
    assert library.events() == []


def test_a_device_that_is_gone_is_told() -> None:
    driver = Driver()
    library = Nvml(driver)
    library.inventory()
    driver.lost = True
    with pytest.raises(GpuLostError):
        library.read("GPU-0")
