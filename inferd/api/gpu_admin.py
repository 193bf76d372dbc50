"""What an admin sees of and does to the GPUs of this node.

Answers are JSON objects; nothing here knows HTTP. Decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from inferd.workers.gpus import Gpus
    from inferd.workers.supervisor import Supervisor

Answer = dict[str, Any]


class Node(Protocol):
    """The composition root, as far as it is about GPUs."""

    supervisor: Supervisor


class GpuAdmin:
    """Handlers without HTTP."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def list(self) -> Answer:
        """Every device that engines may have: what it is, who has it, how it is."""
        owners = {
            device: worker.id
            for worker in self._node.supervisor.workers.values()
            for device in worker.devices
        }
        gpus = self._node.supervisor.gpus
        return {
            "object": "list",
            "readable": gpus.library is not None,
            "data": [gpu_view(gpus, device, owners.get(device)) for device in gpus.devices],
        }

    def lift(self, device: str) -> Answer:
        """End a device's quarantine. Raises NotFound."""
        self._node.supervisor.gpus.lift(device)
        return {"object": "gpu.lift", "gpu": device}


def gpu_view(gpus: Gpus, device: str, worker: str | None) -> Answer:
    """A device as it is listed. What nobody can tell is null."""
    info, reading = gpus.infos.get(device), gpus.readings.get(device)
    reason = gpus.quarantined.get(device)
    free = worker is None and gpus.is_free(device)
    state = "quarantined" if reason else "free" if free else "in use"
    return {
        "gpu": device,
        "state": state,
        "reason": reason or "",
        "worker": None if free else worker,
        "uuid": info and info.uuid,
        "name": info and info.name,
        "numa": info and info.numa,
        "memory_bytes": info and info.memory_bytes,
        "memory_used_bytes": reading and reading.memory_used_bytes,
        "temperature_c": reading and reading.temperature_c,
        "utilization": reading and reading.utilization,
        "ecc_uncorrected": reading and reading.ecc_uncorrected,
    }
