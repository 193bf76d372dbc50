"""What a suspicion means for placement: a worker that may hang is better than none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from inferd.config.schema import Model
from inferd.fleet import Fleet
from inferd.metrics import Metrics
from inferd.routing.scheduler import Scheduler
from inferd.workers.base import Node, WorkerBase
from inferd.workers.client import WorkerClient
from inferd.workers.states import WorkerState, move
from inferd.workers.watchdog import NOTHING
from tests.unit.workers.scripted import NoEnvironment

POOL = "chat@1"
S = WorkerState
MODEL = {
    "name": "chat",
    "default_version": "1",
    "context_tokens_max": 4_096,
    "output_tokens_max": 512,
    "versions": ({"version": "1", "weights": "model"},),
}


class Pool:
    """A fleet with one pool of two ready workers."""

    def __init__(self, folder: Path) -> None:
        metrics = Metrics(CollectorRegistry())
        self.fleet = Fleet(metrics=metrics, record=lambda _: None, rng=random.Random(1))
        self.fleet.apply([Model.model_validate(MODEL)])
        node = Node(
            observer=self.fleet,
            metrics=metrics,
            environment=NoEnvironment(),
            folder=folder,
            leases_of=self.fleet.leases_of,
        )
        self.first, self.second = (self._ready(f"chat-1-{number}", node) for number in (1, 2))

    @staticmethod
    def _ready(worker_id: str, node: Node) -> WorkerBase:
        worker = WorkerBase(
            worker_id,
            POOL,
            node,
            client=WorkerClient(worker_id, "http://127.0.0.1:1", None),
            spec_hash="",
            inflight_max=4,
            previous=None,
        )
        move(worker, S.LOADING)
        move(worker, S.READY)
        return worker

    @property
    def scheduler(self) -> Scheduler:
        return self.fleet.schedulers[POOL]

    @property
    def takes(self) -> set[str]:
        """The numbers of the workers that get new requests."""
        return {target[-1] for target in self.scheduler.ready_targets}


async def test_a_suspect_is_held_back_until_it_is_cleared(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.fleet.suspected(pool.first, suspected=True)
    assert pool.takes == {"2"}
    pool.fleet.suspected(pool.first, suspected=False)
    assert pool.takes == {"1", "2"}


async def test_the_last_one_is_not_held_back(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.fleet.suspected(pool.first, suspected=True)
    pool.fleet.suspected(pool.second, suspected=True)
    assert pool.takes == {"2"}


@pytest.mark.parametrize("end", [S.DRAINING, S.FAILED])
async def test_a_suspect_is_used_again_when_the_others_go(tmp_path: Path, end: WorkerState) -> None:
    pool = Pool(tmp_path)
    pool.fleet.suspected(pool.first, suspected=True)
    move(pool.second, end)
    assert pool.takes == {"1"}


async def test_a_suspect_that_is_given_up_does_not_come_back(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.fleet.suspected(pool.first, suspected=True)
    move(pool.first, S.FAILED)
    assert pool.takes == {"2"}
    move(pool.second, S.FAILED)
    assert pool.takes == set()
    pool.fleet.suspected(pool.first, suspected=False)
    assert pool.takes == set()


async def test_what_is_expected_of_a_worker_without_work_is_a_step(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    expected = pool.fleet.expected("chat-1-1")
    assert (expected.backlog_s, expected.again_s) == (0.0, 0.0)
    assert 0.0 < expected.step_s < 1.0
    assert pool.fleet.expected("nobody") == NOTHING
