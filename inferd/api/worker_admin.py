"""What an admin sees of and does to single workers: list, details, drain.

Answers are JSON objects; nothing here knows HTTP. Reads every owner to inform; decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from inferd.clock import monotonic
from inferd.workers.engine_owner import EngineOwner

if TYPE_CHECKING:
    from inferd.fleet import Fleet
    from inferd.routing.snapshot import TargetSnapshot
    from inferd.workers.base import WorkerBase
    from inferd.workers.supervisor import Supervisor

Answer = dict[str, Any]


class Node(Protocol):
    """The composition root, as far as it is about workers."""

    fleet: Fleet
    supervisor: Supervisor


class WorkerAdmin:
    """Handlers without HTTP."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def list(self) -> Answer:
        """Every worker, as in the status, with its pool."""
        targets = self._targets()
        workers = self._node.supervisor.workers.values()
        return {
            "object": "list",
            "data": [
                {"pool": worker.pool, **worker_view(worker, targets.get(worker.id))}
                for worker in workers
            ],
        }

    def show(self, worker_id: str) -> Answer:
        """One worker with all that is known of it. Raises NotFound."""
        worker = self._node.supervisor.worker(worker_id)
        loads = worker.loads
        return {
            "object": "worker",
            "pool": worker.pool,
            **worker_view(worker, self._targets().get(worker_id)),
            "draining": worker.draining,
            "held": self._node.supervisor.held(worker_id),
            "last_failure": worker.last_failure,
            "last_lines": worker.last_lines,
            "output": None if worker.output_path is None else str(worker.output_path),
            "spec_hash": worker.spec_hash,
            "kv_tokens_used": None if loads is None else loads.used_tokens,
            "kv_tokens": None if loads is None else loads.total_tokens,
            **_started_with(worker),
        }

    def drain(self, worker_id: str, drain_s: float | None = None) -> Answer:
        """Let a worker finish what it has and start no other in its place. Raises NotFound."""
        self._node.supervisor.drain(worker_id, drain_s)
        return {"object": "worker.drain", "worker": worker_id, "drain_s": drain_s}

    def _targets(self) -> dict[str, TargetSnapshot]:
        return {
            target.target: target
            for pool in self._node.fleet.schedulers
            for target in self._node.fleet.targets_of(pool)
        }


def worker_view(worker: WorkerBase, target: TargetSnapshot | None) -> Answer:
    """A worker as it is listed."""
    loads = worker.loads
    return {
        "worker": worker.id,
        "side": worker.side,
        "adapters": dict(worker.client.adapters.states()) if worker.client.adapters else {},
        "attached": worker.output_path is None,
        "adopted": worker.adopted,
        "state": worker.state.value,
        "reason": worker.reason,
        "outlook": worker.outlook,
        "progress": worker.progress,
        "since_s": monotonic() - worker.since,
        "pid": worker.pid,
        "url": worker.client.url,
        "devices": list(worker.devices),
        "inflight": target.inflight if target else 0,
        "inflight_max": worker.inflight_max,
        "outstanding_tokens": target.outstanding_tokens if target else 0,
        "kv_utilization": None if loads is None else loads.kv_utilization,
        "engine_running": None if loads is None else loads.running,
        "engine_waiting": None if loads is None else loads.waiting,
    }


def _started_with(worker: WorkerBase) -> Answer:
    if not isinstance(worker, EngineOwner):
        return {"weights": None, "engine": None}
    return {
        "weights": str(worker.spec.weights),
        "engine": worker.spec.engine.model_dump(mode="json", exclude={"env"}),
    }
