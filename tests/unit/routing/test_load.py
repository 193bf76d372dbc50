"""LoadTable: what is counted is given back once, to the generation it was taken from."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from inferd.inference import Priority, Usage
from inferd.routing.claim import Claim
from inferd.routing.lease import Holder, Lease, LeaseOwner
from inferd.routing.load import LoadTable
from inferd.routing.target import Target


class Owner(LeaseOwner):
    def __init__(self, table: LoadTable) -> None:
        self.table = table

    def lease_answers(self, lease: Lease) -> None:
        self.table.answers(lease)

    def lease_ended(self, lease: Lease) -> None:
        self.table.give_back(lease, 5.0)

    def lease_billed(self, lease: Lease, usage: Usage) -> None:
        pass


def take(table: LoadTable, target_id: str, tokens: int = 10, choices: int = 1) -> Lease:
    target = table.get(target_id)
    assert target is not None
    holder = Holder("search", Priority.INTERACTIVE, 1, 0)
    holder.stream = True
    claim = Claim(tokens, 0, choices)
    lease = Lease(target, claim, Owner(table), holder, "tie", granted_at=0.0, queue_wait_s=0.0)
    table.take(lease)
    return lease


def candidates(table: LoadTable, choices: int, barred: Collection[str] = ()) -> list[Target]:
    return [target for target in table.allowed(barred) if target.has_slots(choices)]


def test_a_lease_counts_until_it_is_released_and_only_once() -> None:
    table = LoadTable()
    table.up("a", 4, 0.0)
    lease = take(table, "a", tokens=100, choices=2)
    target = table.get("a")
    assert target is not None
    assert (target.inflight, target.outstanding_tokens, table.leases_open) == (2, 100, 1)
    lease.release()
    lease.release()
    assert (target.inflight, target.outstanding_tokens, table.leases_open) == (0, 0, 0)


def test_leases_of_a_target_that_went_down_do_not_touch_its_next_generation() -> None:
    table = LoadTable()
    table.up("a", 4, 0.0)
    old = [take(table, "a") for _ in range(3)]
    table.down("a", 0.0)
    assert table.inflight == 0
    table.up("a", 4, 0.0)
    new = take(table, "a")
    for lease in old:
        lease.release()
    target = table.get("a")
    assert target is not None
    assert (target.inflight, target.outstanding_tokens) == (1, 10)
    new.release()
    assert (target.inflight, target.outstanding_tokens, table.leases_open) == (0, 0, 0)


def test_a_draining_target_keeps_its_leases_and_may_come_back_with_them() -> None:
    table = LoadTable()
    table.up("a", 2, 0.0)
    lease = take(table, "a")
    table.draining("a")
    assert not table.serves(())
    assert not candidates(table, 1, ())
    assert table.inflight == 1
    table.up("a", 1, 0.0)
    assert table.serves(())
    assert not candidates(table, 1)
    lease.release()
    assert candidates(table, 1)


def test_more_choices_than_slots_take_all_of_them() -> None:
    table = LoadTable()
    table.up("a", 4, 0.0)
    assert [one.id for one in candidates(table, 8, ())] == ["a"]
    lease = take(table, "a", choices=8)
    assert lease.slots == 4
    assert not candidates(table, 1)
    lease.release()
    take(table, "a")
    assert not candidates(table, 8, ())
    assert candidates(table, 3, ())


def test_excluded_targets_neither_serve_nor_have_room() -> None:
    table = LoadTable()
    table.up("a", 1, 0.0)
    assert not table.serves({"a"})
    assert not candidates(table, 1, {"a"})
    assert not candidates(table, 1, {"a"})
    table.up("b", 1, 0.0)
    assert table.serves({"a"})


def test_what_is_not_there_can_drain_and_go_down() -> None:
    table = LoadTable()
    table.draining("a")
    table.down("a", 0.0)
    assert table.get("a") is None


def test_capacity_that_shrinks_below_what_runs_only_stops_new_leases() -> None:
    table = LoadTable()
    table.up("a", 4, 0.0)
    leases = [take(table, "a") for _ in range(4)]
    table.up("a", 2, 0.0)
    for lease in leases[:2]:
        lease.release()
        assert not candidates(table, 1)
    leases[2].release()
    assert candidates(table, 1)


def test_a_lease_lasts_as_measured_or_as_long_as_the_open_ones_have_already() -> None:
    table = LoadTable()
    table.up("a", 4, 0.0)
    assert table.lease_s(0.0) == 0.0
    lease = take(table, "a")
    assert table.lease_s(2.0) == 2.0
    lease.release()
    assert table.lease_s(100.0) == pytest.approx(5.0)
    take(table, "a")
    assert table.lease_s(100.0) == pytest.approx(100.0)


def test_random_flapping_ends_at_zero_and_never_goes_below(rng: random.Random) -> None:
    table = LoadTable()
    leases: list[Lease] = []
    for _ in range(3_000):
        name = rng.choice("abc")
        act = rng.random()
        if act < 0.1:
            table.up(name, rng.randrange(1, 5), 0.0)
        elif act < 0.15:
            table.draining(name)
        elif act < 0.2:
            table.down(name, 0.0)
        elif act < 0.6:
            if found := candidates(table, rng.randrange(1, 8), ()):
                leases.append(take(table, found[0].id, rng.randrange(1, 100), rng.randrange(1, 4)))
        elif leases:
            leases.pop(rng.randrange(len(leases))).release()
        for target in table.targets:
            assert target.inflight >= 0
            assert target.outstanding_tokens >= 0
        assert table.leases_open == len(leases)
    for lease in leases:
        lease.release()
    assert table.leases_open == table.inflight == 0
    assert all(target.outstanding_tokens == 0 for target in table.targets)
