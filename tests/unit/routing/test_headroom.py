"""Who decodes, and who holds an adapter. Goal: room in the cache first, and no needless loads."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from inferd.config.schema import Queue
from inferd.inference import adapter_of
from inferd.routing.claim import Asked
from inferd.routing.headroom import Headroom
from inferd.routing.placement import Reason, Wait
from inferd.routing.target import Target
from tests.unit.routing.clients import Client, at_rest, end_all, request, scheduler, turns

ASKED = Asked(1_000, 200)
NOW = 10.0


def target(name: str, kv_tokens: int | None = None, used: int = 0, slots: int = 4) -> Target:
    made = Target(name, slots, 0.0)
    if kv_tokens is not None:
        made.reported(used, kv_tokens, NOW)
    return made


def busy(made: Target, number: int = 1) -> Target:
    for _ in range(number):
        made.take(ASKED.claim(made.bit), 1, NOW)
    return made


def test_the_one_with_most_free_cache_decodes() -> None:
    targets = [target("a", 40_000, 30_000), target("b", 20_000), target("c", 40_000, 35_000)]
    choice = Headroom().choose(ASKED, targets, NOW)
    assert (choice.target.id, choice.reason, choice.wait) == ("b", Reason.LEAST_LOADED, None)


def test_an_unknown_cache_counts_by_what_its_answers_may_still_take() -> None:
    targets = [busy(target("a"), 2), busy(target("b"))]
    assert Headroom().choose(ASKED, targets, NOW).target.id == "b"


def test_a_full_cache_or_no_slot_is_waited_for_but_an_idle_one_takes_any() -> None:
    full = busy(target("a", 2_000))
    assert Headroom().choose(ASKED, [full], NOW).wait is Wait.ROOM
    slots = busy(target("b", 100_000, slots=1))
    choice = Headroom().choose(ASKED, [full, slots], NOW)
    assert choice.wait is Wait.ROOM
    assert Headroom().choose(ASKED, [target("c", 500)], NOW).wait is None


async def test_a_request_goes_first_to_who_holds_its_adapter() -> None:
    pool = scheduler()
    for name in ("a", "b", "c"):
        pool.target_up(name, 1)
    adapter = adapter_of("sql", "adapters/sql")
    pool.target_holds("b", frozenset({adapter.key}))
    async with asyncio.TaskGroup() as group:
        asked = replace(request(), adapter=adapter)
        first = Client(group, pool, asked)
        await turns()
        assert first.target == "b"
        second = Client(group, pool, asked)  # that one is busy: another one loads it
        await turns()
        assert second.target in {"a", "c"}
        await end_all([first, second])
    pool.update(Queue())
    assert at_rest(pool)
