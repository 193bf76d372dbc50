"""What an admin sees of and does to this node: status, reload, worker output, restart.

Answers are JSON objects. Reads every owner to inform; decides nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from inferd import __version__
from inferd.clock import monotonic, utc_now_us
from inferd.errors import NotFound
from inferd.workers.output_log import follow

if TYPE_CHECKING:
    from inferd.config.load import LoadedConfig
    from inferd.config.reload import Change
    from inferd.dispatch import Dispatch
    from inferd.fleet import Fleet
    from inferd.quota.buckets import Buckets
    from inferd.workers.base import WorkerBase
    from inferd.workers.supervisor import Supervisor


class Node(Protocol):
    """The composition root, as far as an admin reaches it."""

    loaded: LoadedConfig
    started_us: int
    stopping: bool
    buckets: Buckets
    dispatch: Dispatch
    fleet: Fleet
    supervisor: Supervisor

    def reload(self) -> list[Change]: ...

    def readiness(self) -> tuple[bool, dict[str, Any]]: ...


class NodeAdmin:
    """Handlers without HTTP."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def status(self) -> dict[str, Any]:
        """The whole node on one page: pools with queue and workers, teams with what is left."""
        node = self._node
        ready, readiness = node.readiness()
        return {
            "object": "status",
            "version": __version__,
            "config": str(node.loaded.path),
            "uptime_s": (utc_now_us() - node.started_us) / 1_000_000,
            "ready": ready,
            "state": readiness["status"],
            "requests_in_flight": node.dispatch.in_flight,
            "pools": [self._pool(pool) for pool in node.fleet.schedulers],
            "teams": self._teams(),
        }

    def reload(self) -> dict[str, Any]:
        """Apply inferd.toml as it is now. Raises ConfigError, and then nothing was changed."""
        changes = self._node.reload()
        described = [{"change": type(change).__name__, "reload": change.reload} for change in changes]
        return {"object": "reload", "changes": described}

    def restart_worker(self, worker_id: str) -> dict[str, Any]:
        """Drain a worker and start it again. Raises NotFound."""
        self._node.supervisor.restart(worker_id)
        return {"object": "worker.restart", "worker": worker_id}

    def worker_output(self, worker_id: str, lines: int, *, follow_it: bool) -> AsyncIterator[str]:
        """The last lines of a worker's output, and what comes if followed. Raises NotFound."""
        path = self._output_path(worker_id)
        return follow(path, lines, follow_it)

    def _output_path(self, worker_id: str) -> Path:
        worker = self._node.supervisor.workers.get(worker_id)
        path = None if worker is None else worker.output_path
        if path is None:
            known = ", ".join(self._node.supervisor.workers) or "none"
            raise NotFound(f"There is no output of a worker '{worker_id}'. Workers: {known}.")
        return path

    def _pool(self, pool: str) -> dict[str, Any]:
        node = self._node
        snapshot = node.fleet.schedulers[pool].snapshot()
        model, _, version = pool.rpartition("@")
        targets = {target.target: target for target in snapshot.targets}
        workers: Mapping[str, WorkerBase] = node.supervisor.workers
        return {
            "pool": pool,
            "model": model,
            "version": version,
            "state": node.fleet.pool_state(pool),
            "waiting": {priority.value: count for priority, count in snapshot.waiting.items()},
            "waiting_by_team": snapshot.waiting_by_team,
            "oldest_wait_s": snapshot.oldest_wait_s,
            "workers": [
                _worker(worker, targets.get(worker.id))
                for worker in workers.values()
                if worker.pool == pool
            ],
        }

    def _teams(self) -> list[dict[str, Any]]:
        return [
            {
                "team": team.team,
                "tokens_left": None if team.tokens is None else int(team.tokens.balance),
                "burst_tokens": None if team.tokens is None else int(team.tokens.burst),
                "outstanding_tokens": team.outstanding_tokens,
                "outstanding_requests": team.outstanding_requests,
            }
            for team in self._node.buckets.snapshot(monotonic())
        ]


def _worker(worker: WorkerBase, target: Any) -> dict[str, Any]:  # noqa: ANN401 - a TargetSnapshot
    loads = worker.loads
    return {
        "worker": worker.id,
        "state": worker.state,
        "reason": worker.reason,
        "outlook": worker.outlook,
        "progress": worker.progress,
        "since_s": monotonic() - worker.since,
        "pid": worker.pid,
        "url": worker.client.url,
        "inflight": target.inflight if target else 0,
        "inflight_max": worker.inflight_max,
        "outstanding_tokens": target.outstanding_tokens if target else 0,
        "kv_utilization": None if loads is None else loads.kv_utilization,
        "engine_running": None if loads is None else loads.running,
        "engine_waiting": None if loads is None else loads.waiting,
    }
