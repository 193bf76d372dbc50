"""What an admin sees of and does to this node: status, reload, worker output, restart.

Answers are JSON objects; nothing here knows HTTP. Reads every owner to inform; decides nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from inferd import __version__
from inferd.api.changes import in_words
from inferd.api.gpu_admin import GpuAdmin
from inferd.api.pool_view import pool_in_words
from inferd.api.worker_admin import WorkerAdmin, worker_view
from inferd.clock import monotonic, utc_now_us
from inferd.config.checks import versions_of
from inferd.errors import NotFound
from inferd.routing.pools import pool_id
from inferd.workers.output_log import follow

if TYPE_CHECKING:
    from inferd.config.change import Change
    from inferd.config.load import LoadedConfig
    from inferd.dispatch import Dispatch
    from inferd.fleet import Fleet
    from inferd.quota.buckets import Buckets, PairState
    from inferd.quota.exact_counts import ExactCounts
    from inferd.workers.base import WorkerBase
    from inferd.workers.supervisor import Supervisor


class Node(Protocol):
    """The composition root, as far as an admin reaches it."""

    loaded: LoadedConfig
    started_us: int
    buckets: Buckets
    dispatch: Dispatch
    fleet: Fleet
    exact: ExactCounts
    supervisor: Supervisor

    async def reload(self) -> list[Change]: ...

    def readiness(self) -> tuple[bool, dict[str, Any]]: ...


class NodeAdmin:
    """Handlers without HTTP."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.workers = WorkerAdmin(node)
        self.gpus = GpuAdmin(node)

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

    def pools(self) -> dict[str, Any]:
        """What each pool is and how it stands."""
        node = self._node
        found = versions_of(node.loaded.config)
        return {
            "object": "list",
            "data": [
                pool_in_words(model, version, self._pool(pool))
                for _, model, version in found
                if (pool := pool_id(model.name, version.version)) in node.fleet.schedulers
            ],
        }

    async def reload(self) -> dict[str, Any]:
        """Apply inferd.toml as it is now. Raises ConfigError, and then nothing was changed."""
        changes = await self._node.reload()
        return {
            "object": "reload",
            "config": str(self._node.loaded.path),
            "changes": [
                {
                    "change": type(change).__name__,
                    "reload": change.reload,
                    "text": in_words(change),
                }
                for change in changes
            ],
        }

    def restart_worker(self, worker_id: str) -> dict[str, Any]:
        """Drain a worker and start it again. Raises NotFound."""
        self._node.supervisor.restart(worker_id)
        return {"object": "worker.restart", "worker": worker_id}

    def worker_output(self, worker_id: str, *, lines: int, follow_it: bool) -> AsyncIterator[str]:
        """The last lines of a worker's output; followed, what comes until the worker is removed.

        Raises NotFound, at once.
        """
        path = self._output_path(worker_id)
        workers = self._node.supervisor
        return follow(
            path, lines=lines, follow=follow_it, over=lambda: worker_id not in workers.workers
        )

    def _output_path(self, worker_id: str) -> Path:
        workers = self._node.supervisor.workers
        worker = workers.get(worker_id)
        if worker is None:
            known = ", ".join(workers) or "none"
            raise NotFound(f"There is no worker '{worker_id}'; there are: {known}.")
        if worker.output_path is None:
            raise NotFound(
                f"The output of '{worker_id}' is not here: somebody else runs it, at"
                f" {worker.client.url}."
            )
        return worker.output_path

    def _pool(self, pool: str) -> dict[str, Any]:
        node = self._node
        snapshot = node.fleet.schedulers[pool].snapshot()
        model, _, version = pool.rpartition("@")
        targets = {target.target: target for target in node.fleet.targets_of(pool)}
        workers: Mapping[str, WorkerBase] = node.supervisor.workers
        return {
            "pool": pool,
            "model": model,
            "version": version,
            "state": node.fleet.pool_state(pool),
            "counts_exactly": node.exact.knows(pool),
            "waiting": {priority.value: count for priority, count in snapshot.waiting.items()},
            "waiting_by_team": snapshot.waiting_by_team,
            "oldest_wait_s": snapshot.oldest_wait_s,
            "workers": [
                worker_view(worker, targets.get(worker.id))
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
                "models": {name: _left(pair) for name, pair in team.models.items()},
                "keys": {key_id: _left(pair) for key_id, pair in team.keys.items()},
            }
            for team in self._node.buckets.snapshot(monotonic())
        ]


def _left(pair: PairState) -> dict[str, Any]:
    """What is left under limits of one model or key."""
    tokens, requests = pair.tokens, pair.requests
    return {
        "tokens_left": None if tokens is None else int(tokens.balance),
        "burst_tokens": None if tokens is None else int(tokens.burst),
        "requests_left": None if requests is None else int(requests.balance),
        "burst_requests": None if requests is None else int(requests.burst),
    }
