"""Simulations: the engine's model, and what the policies are worth against each other."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from inferd.capacity.batch_effect import batch_effect
from inferd.capacity.engine_model import EngineModel, Job
from inferd.capacity.simulate import ENGINES, Scenario, figures, simulate
from inferd.capacity.virtual_time import SimulatedTime
from inferd.capacity.windows import jain, shares, sparkline, ttft_p95
from inferd.capacity.workloads import Arrival, Workload, load
from inferd.routing.cost_model import H100_8B


def run_jobs(*sizes: tuple[tuple[int, ...], int, int]) -> list[Job]:
    """Jobs sent at once to one engine; each has ended when this returns."""

    async def play() -> list[Job]:
        engine = EngineModel(H100_8B, 430_000, 64)
        loop = asyncio.get_running_loop()
        left = len(sizes)
        over = loop.create_future()

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                over.set_result(None)

        jobs = [
            Job(number, keys, prompt, output, lambda: None, done)
            for number, (keys, prompt, output) in enumerate(sizes)
        ]
        for job in jobs:
            engine.submit(job)
        await over
        assert engine.jobs == 0
        assert not engine._pins
        assert engine._private == 0
        return jobs

    with asyncio.Runner(loop_factory=SimulatedTime) as runner:
        return runner.run(play())


def test_a_prompt_takes_what_the_cost_model_says() -> None:
    (job,) = run_jobs((tuple(range(32)), 2_048, 10))
    assert job.first_at * 1e3 == pytest.approx(45, rel=0.25)


def test_a_prefix_that_was_computed_is_not_computed_again() -> None:
    shared = tuple(range(100))
    first, second = run_jobs((shared, 6_400, 10), ((*shared, 7, 8), 6_528, 10))
    assert first.cached_tokens == 0
    assert second.cached_tokens in (0, 6_400)


def test_the_same_seed_gives_the_same_run_and_policies_differ() -> None:
    stream = load("b2b", None)
    short = Workload("b2b", stream.arrivals[:1_500], stream.block_tokens)
    base = Scenario(short, ENGINES["8b"], 4, speed=7 / short.rate)
    one, two = figures(simulate(base)), figures(simulate(base))
    assert one == two
    blind = Scenario(short, ENGINES["8b"], 4, "least_tokens", speed=7 / short.rate)
    other = figures(simulate(blind))
    assert one["of_bound"] > 1.3 * other["of_bound"]
    assert one["on_time"] >= other["on_time"]


def test_shares_under_overload_are_as_the_weights() -> None:
    names = ("one", "two", "four")
    arrivals = tuple(
        Arrival(number * 0.01, 1_000, 100, (), names[number % 3]) for number in range(6_000)
    )
    stream = Workload("even", arrivals, 64)
    weights = {"one": 1, "two": 2, "four": 4}
    run = simulate(Scenario(stream, ENGINES["8b"], 1, weights=weights))
    got = shares(run)
    assert jain([got[name] / weights[name] for name in names]) >= 0.99
    assert max(one.refused_after_s or 0.0 for one in run.served) <= 0.8
    assert len(sparkline(ttft_p95(run))) == 40


def test_a_batch_fills_what_is_free_and_leaves_the_rest_alone() -> None:
    day = load("day", None)
    quiet = Workload("morning", tuple(one for one in day.arrivals if 360 <= one.at_s < 720), 64)
    alone = Scenario(quiet, ENGINES["8b"], 2)
    effect = batch_effect(simulate(alone), run := simulate(replace(alone, batch=True)))
    assert effect.filled >= 0.8
    assert abs(effect.ttft_p95_moved) < 0.05
    assert run.batch_done > 1_000
