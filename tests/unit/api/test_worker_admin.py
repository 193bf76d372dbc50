"""What is listed of workers: of both sides of a split pool too."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from inferd.api.worker_admin import WorkerAdmin
from inferd.config.schema import Model
from inferd.fleet import Fleet
from inferd.metrics import Metrics
from inferd.workers.base import Node, WorkerBase
from inferd.workers.client import WorkerClient
from inferd.workers.spec import Side
from inferd.workers.states import WorkerState, move
from tests.paths.data_path import DataPath
from tests.unit.workers.scripted import NoEnvironment

POOL = "chat@1"
MODEL = {
    "name": "chat",
    "default_version": "1",
    "context_tokens_max": 4_096,
    "output_tokens_max": 512,
    "versions": ({"version": "1", "weights": "model", "split": {"prefill_workers": 1}},),
}


class Sided(WorkerBase):
    @property
    def side(self) -> Side:
        return Side.PREFILL if self.id == "p" else Side.DECODE


async def test_what_a_decode_worker_carries_is_shown(tmp_path: Path) -> None:
    metrics = Metrics(CollectorRegistry())
    fleet = Fleet(metrics=metrics, record=lambda _: None, rng=random.Random(1))
    fleet.apply([Model.model_validate(MODEL)])
    node = Node(
        observer=fleet,
        metrics=metrics,
        environment=NoEnvironment(),
        folder=tmp_path,
        leases_of=fleet.leases_of,
    )
    for worker_id in ("p", "d"):
        client = WorkerClient(worker_id, "http://127.0.0.1:1", None)
        worker = Sided(
            worker_id, POOL, node, client=client, spec_hash="", inflight_max=4, previous=None
        )
        move(worker, WorkerState.LOADING)
        move(worker, WorkerState.READY)
    shown: Any = SimpleNamespace(fleet=fleet, supervisor=SimpleNamespace(workers=fleet.workers))
    async with fleet.decoders[POOL].ticket(DataPath("w").request(), 1):
        listed = {one["worker"]: one for one in WorkerAdmin(shown).list()["data"]}
    assert (listed["p"]["inflight"], listed["d"]["inflight"]) == (0, 1)
    assert listed["d"]["outstanding_tokens"] > 0
