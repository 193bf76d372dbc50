"""What is listed of workers: of both sides of a split pool too."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
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
        return {"p": Side.PREFILL, "d": Side.DECODE}.get(self.id, Side.WHOLE)


def split_pool(folder: Path, *workers: str) -> Fleet:
    """A fleet with one pool, of which these are ready."""
    metrics = Metrics(CollectorRegistry())
    fleet = Fleet(metrics=metrics, record=lambda _: None, rng=random.Random(1))
    fleet.apply([Model.model_validate(MODEL)])
    node = Node(
        observer=fleet,
        metrics=metrics,
        environment=NoEnvironment(),
        folder=folder,
        leases_of=fleet.leases_of,
    )
    for worker_id in workers:
        client = WorkerClient(worker_id, "http://127.0.0.1:1", None)
        worker = Sided(
            worker_id, POOL, node, client=client, spec_hash="", inflight_max=4, previous=None
        )
        move(worker, WorkerState.LOADING)
        move(worker, WorkerState.READY)
    return fleet


async def test_what_a_decode_worker_carries_is_shown(tmp_path: Path) -> None:
    fleet = split_pool(tmp_path, "p", "d")
    node: Any = SimpleNamespace(fleet=fleet, supervisor=SimpleNamespace(workers=fleet.workers))
    async with fleet.decoders[POOL].ticket(DataPath("w").request(), 1):
        listed = {one["worker"]: one for one in WorkerAdmin(node).list()["data"]}
    assert (listed["p"]["inflight"], listed["d"]["inflight"]) == (0, 1)
    assert listed["d"]["outstanding_tokens"] > 0


@pytest.mark.parametrize(
    ("workers", "state"),
    [("pd", "ready"), ("p", "unavailable"), ("d", "unavailable"), ("w", "ready")],
)
async def test_a_pool_that_is_being_split_is_as_ready_as_what_serves_it(
    tmp_path: Path, workers: str, state: str
) -> None:
    assert split_pool(tmp_path, *workers).pool_state(POOL) == state
