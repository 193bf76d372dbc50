"""A pool whose prompts are computed by other workers than its answers."""

from __future__ import annotations

from inferd.inference import Outcome
from tests.paths.data_path import CollectedStream, DataPath


async def test_two_workers_make_one_answer() -> None:
    path = DataPath("p", decoders=("d",))
    async with path.serving():
        await path.dispatch.run(path.request(), CollectedStream())
    (row,) = path.rows
    assert (row.outcome, row.worker, row.prefill_worker) == (Outcome.COMPLETED, "d", "p")
    (prompt,), (answer,) = path.workers["p"].requests, path.workers["d"].requests
    assert prompt["bootstrap_room"] == answer["bootstrap_room"]
    path.assert_at_rest()


async def test_a_worker_from_before_the_pool_was_split_answers_alone() -> None:
    path = DataPath("w", decoders=("d",))
    path.workers["w"].client.bootstrap_port = None
    path.decoder.target_down("d")  # it still loads
    async with path.serving():
        await path.dispatch.run(path.request(), CollectedStream())
    (row,) = path.rows
    assert (row.outcome, row.worker, row.prefill_worker) == (Outcome.COMPLETED, "w", None)
    assert "bootstrap_room" not in path.workers["w"].requests[0]
    path.assert_at_rest()
