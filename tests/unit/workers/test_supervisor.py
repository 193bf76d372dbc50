"""Desired against actual on virtual time: scripted workers, a day in milliseconds."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd import clock
from inferd.errors import NotFound
from inferd.workers import supervisor as supervisor_module
from inferd.workers.base import Node
from inferd.workers.states import WorkerState
from tests.unit.workers.scripted import ID, LOAD_S, STOP_S, pool, states, supervised

S = WorkerState


async def test_what_is_wanted_is_there_at_once_and_ready_later() -> None:
    async with supervised() as (supervisor, _):
        supervisor.apply([pool(count=2)])
        assert states(supervisor) == {"chat-1-1": "stopped", "chat-1-2": "stopped"}
        await asyncio.sleep(LOAD_S + 1)
        assert states(supervisor) == {"chat-1-1": "ready", "chat-1-2": "ready"}


async def test_waits_double_with_jitter_up_to_the_longest() -> None:
    async with supervised(lambda _: 0) as (supervisor, diary):
        supervisor.apply(
            [pool(restart_backoff_s=1.0, restart_backoff_s_max=30.0, restarts_per_hour_max=9)]
        )
        await asyncio.sleep(1_000)
        gaps = diary.gaps()
    nominal = [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    assert len(gaps) == len(nominal)
    assert all(0.5 * n <= gap <= n for gap, n in zip(gaps, nominal, strict=True))
    assert any(gap < 0.95 * n for gap, n in zip(gaps, nominal, strict=True))


async def test_many_workers_that_fail_together_do_not_start_together() -> None:
    async with supervised(lambda _: 0) as (supervisor, diary):
        supervisor.apply([pool(count=8, restarts_per_hour_max=1)])
        await asyncio.sleep(100)
        second = [diary.times(S.SPAWNING, worker_id)[1] for worker_id in supervisor.workers]
    assert len(set(second)) == 8


async def test_too_many_restarts_in_an_hour_end_them_until_somebody_asks() -> None:
    async with supervised(lambda _: 0) as (supervisor, diary):
        supervisor.apply([pool(restarts_per_hour_max=3)])
        await asyncio.sleep(86_400)
        assert len(diary.times(S.SPAWNING)) == 4
        worker = supervisor.workers[ID]
        assert worker.state is S.FAILED
        assert worker.reason == "it does not load"
        assert worker.outlook.startswith("given up after 3 restarts within an hour")
        supervisor.restart(ID)
        await asyncio.sleep(86_400)
        assert len(diary.times(S.SPAWNING)) == 8


async def test_a_worker_that_fails_now_and_then_is_never_given_up() -> None:
    async with supervised(lambda _: 900.0) as (supervisor, diary):
        supervisor.apply([pool(restarts_per_hour_max=4)])
        await asyncio.sleep(86_400)
        assert len(diary.times(S.SPAWNING)) > 86_400 / 900 - 5
        assert max(diary.gaps()) <= 1.0  # long READY: each wait is the shortest


async def test_a_short_success_does_not_shorten_the_next_wait() -> None:
    async with supervised(lambda _: 10.0) as (supervisor, diary):
        supervisor.apply([pool(restarts_per_hour_max=6, restart_backoff_s_max=600.0)])
        await asyncio.sleep(3_000)
        gaps = diary.gaps()
    assert all(later > earlier for earlier, later in pairwise(gaps[::2]))


async def test_no_restarts_allowed_means_none() -> None:
    async with supervised(lambda _: 0) as (supervisor, diary):
        supervisor.apply([pool(restarts_per_hour_max=0)])
        await asyncio.sleep(10_000)
        assert len(diary.times(S.SPAWNING)) == 1


async def test_a_changed_configuration_ends_the_wait_an_unchanged_one_does_not() -> None:
    async with supervised(lambda _: 0) as (supervisor, diary):
        supervisor.apply([pool(restarts_per_hour_max=0)])
        await asyncio.sleep(100)
        supervisor.apply([pool(restarts_per_hour_max=0)])
        await asyncio.sleep(100)
        assert len(diary.times(S.SPAWNING)) == 1
        supervisor.apply([pool(restarts_per_hour_max=1)])
        await asyncio.sleep(100)
        assert len(diary.times(S.SPAWNING)) == 3


async def test_a_changed_count_adds_and_removes_the_highest() -> None:
    async with supervised() as (supervisor, diary):
        supervisor.apply([pool(count=2)])
        await asyncio.sleep(100)
        supervisor.apply([pool(count=3)])
        await asyncio.sleep(100)
        assert states(supervisor) == dict.fromkeys(["chat-1-1", "chat-1-2", "chat-1-3"], "ready")
        assert len(diary.times(S.SPAWNING)) == 1
        supervisor.apply([pool(count=1)])
        await asyncio.sleep(100)
        assert states(supervisor) == {"chat-1-1": "ready"}


async def test_a_running_worker_can_be_restarted() -> None:
    async with supervised() as (supervisor, diary):
        supervisor.apply([pool()])
        await asyncio.sleep(100)
        before = supervisor.workers[ID]
        supervisor.restart(ID)
        await asyncio.sleep(100)
        assert supervisor.workers[ID] is not before
        assert supervisor.workers[ID].state is S.READY
        assert diary.times(S.FAILED) == []
        with pytest.raises(NotFound, match=r"no worker 'gone'; there are: chat-1-1"):
            supervisor.restart("gone")


async def test_a_changed_spec_rolls_one_place_at_a_time() -> None:
    async with supervised() as (supervisor, diary):
        supervisor.apply([pool("old", count=3)])
        await asyncio.sleep(100)
        diary.serving_least = 3
        supervisor.apply([pool("new", count=3)])
        await asyncio.sleep(1_000)
        assert diary.serving_least == 2
        assert [worker.model for worker in supervisor.workers.values()] == ["new"] * 3  # type: ignore[attr-defined]
        for worker_id in supervisor.workers:
            stopped = diary.times(S.STOPPED, worker_id)[0]
            assert diary.times(S.SPAWNING, worker_id)[1] >= stopped  # the devices were free


async def test_a_spec_that_does_not_start_stops_at_the_first_place() -> None:
    async with supervised(lambda model: 0 if model == "bad" else None) as (supervisor, _):
        supervisor.apply([pool("old", count=3)])
        await asyncio.sleep(100)
        supervisor.apply([pool("bad", count=3)])
        await asyncio.sleep(86_400)
        assert states(supervisor) == {
            "chat-1-1": "failed",
            "chat-1-2": "ready",
            "chat-1-3": "ready",
        }
        supervisor.apply([pool("good", count=3)])
        await asyncio.sleep(1_000)
        assert set(states(supervisor).values()) == {"ready"}


async def test_a_second_change_overtakes_the_first() -> None:
    async with supervised() as (supervisor, diary):
        supervisor.apply([pool("old", count=3)])
        await asyncio.sleep(100)
        supervisor.apply([pool("middle", count=3)])
        await asyncio.sleep(LOAD_S + STOP_S + 7)
        diary.serving_least = 3
        supervisor.apply([pool("new", count=3)])
        await asyncio.sleep(1_000)
        assert [worker.model for worker in supervisor.workers.values()] == ["new"] * 3  # type: ignore[attr-defined]
        assert diary.serving_least == 1  # the one in the middle of its change, and one more


async def test_places_that_serve_nobody_change_at_once() -> None:
    async with supervised(lambda model: 0 if model == "bad" else None) as (supervisor, _):
        supervisor.apply([pool("bad", count=3, restarts_per_hour_max=0)])
        await asyncio.sleep(100)
        supervisor.apply([pool("good", count=3, restarts_per_hour_max=0)])
        await asyncio.sleep(LOAD_S + 1)
        assert set(states(supervisor).values()) == {"ready"}


async def test_pools_change_independently() -> None:
    async with supervised() as (supervisor, diary):
        supervisor.apply([pool("old"), pool("old", name="code")])
        await asyncio.sleep(100)
        supervisor.apply([pool("new"), pool("old", name="code")])
        await asyncio.sleep(100)
        assert len(diary.times(S.SPAWNING, "code-1-1")) == 1
        supervisor.apply([pool("old", name="code")])
        await asyncio.sleep(100)
        assert states(supervisor) == {"code-1-1": "ready"}


async def test_a_pool_that_comes_back_while_it_leaves_starts_anew() -> None:
    async with supervised() as (supervisor, diary):
        supervisor.apply([pool()])
        await asyncio.sleep(100)
        supervisor.apply([])
        await asyncio.sleep(1)
        supervisor.apply([pool()])
        await asyncio.sleep(100)
        assert states(supervisor) == {ID: "ready"}
        assert len(diary.times(S.SPAWNING)) == 2


async def test_a_worker_wanted_again_while_what_was_left_of_it_ends_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def takes_a_while(node: Node, worker_id: str) -> None:
        await asyncio.sleep(10)

    monkeypatch.setattr(supervisor_module, "end_found", takes_a_while)
    async with supervised() as (supervisor, _):
        supervisor.apply([pool()])
        await asyncio.sleep(100)
        supervisor.apply([])
        await asyncio.sleep(STOP_S + 1)
        supervisor.apply([pool()])
        await asyncio.sleep(100)
        assert states(supervisor) == {ID: "ready"}


async def test_stopping_is_done_by_all_at_the_same_time() -> None:
    async with supervised() as (supervisor, diary):
        supervisor.apply([pool(count=8)])
        await asyncio.sleep(100)
        start = clock.monotonic()
    assert clock.monotonic() - start == pytest.approx(STOP_S)
    assert len([entry for entry in diary.entries if entry[2] == "stopped"]) == 8


async def test_stopping_ends_waits_too() -> None:
    async with supervised(lambda _: 0) as (supervisor, _):
        supervisor.apply([pool(restarts_per_hour_max=0), pool(name="code")])
        await asyncio.sleep(LOAD_S + 0.1)
        start = clock.monotonic()
    assert clock.monotonic() == start


async def test_a_worker_that_was_removed_is_forgotten_by_the_metrics() -> None:
    async with supervised() as (supervisor, _):
        supervisor.apply([pool()])
        await asyncio.sleep(100)
        metrics = supervisor._node.metrics
        assert f'inferd_worker_state{{state="ready",worker="{ID}"}} 1.0' in (
            metrics.exposition().decode()
        )
        supervisor.apply([])
        await asyncio.sleep(100)
        assert f'inferd_worker_state{{state="ready",worker="{ID}"}}' not in (
            metrics.exposition().decode()
        )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "bad"]),  # model
            st.integers(0, 3),  # count
            st.sampled_from(["apply", "restart", "wait"]),
            st.floats(0.0, 80.0),  # seconds until the next step
        ),
        max_size=12,
    ),
    st.integers(0, 3),
    st.integers(),
)
async def test_whatever_was_asked_for_what_is_wanted_last_is_there_in_the_end(
    steps: list[tuple[str, int, str, float]], count: int, seed: int
) -> None:
    async with supervised(lambda model: 0 if model == "bad" else None, seed) as (supervisor, _):
        for model, wanted, act, seconds in steps:
            if act == "apply":
                supervisor.apply([pool(model, count=wanted)])
            elif act == "restart" and supervisor.workers:
                supervisor.restart(next(iter(supervisor.workers)))
            await asyncio.sleep(seconds)
        supervisor.apply([pool("last", count=count)])
        await asyncio.sleep(5_000)
        found = {worker_id: w.model for worker_id, w in supervisor.workers.items()}  # type: ignore[attr-defined]
        assert found == {f"chat-1-{n}": "last" for n in range(1, count + 1)}
        assert set(states(supervisor).values()) <= {"ready"}
