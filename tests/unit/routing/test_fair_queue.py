"""FairQueue: shares by weight, order within a team, bounds, and no charge for what was given up."""

from __future__ import annotations

import random
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inferd.inference import Priority
from inferd.routing.fair_queue import FairQueue, Place

INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH


def queue(waiting_max: int = 10**6, per_team: int = 10**6) -> FairQueue[Place]:
    return FairQueue(waiting_max, per_team)


def place(team: str, cost: int = 100, weight: int = 1, priority: Priority = INTERACTIVE) -> Place:
    return Place(team, priority, weight, cost)


def grant(fair: FairQueue[Place]) -> Place:
    head = fair.head()
    assert head is not None
    fair.take(head)
    return head


def test_shares_under_backlog_are_as_the_weights(rng: random.Random) -> None:
    fair = queue()
    weights = {"one": 1, "two": 2, "four": 4}
    for team, weight in weights.items():
        for _ in range(2_000):
            fair.push(place(team, rng.randrange(1, 4_000), weight))
    tokens: Counter[str] = Counter()
    while sum(tokens.values()) < 3_000_000:
        granted = grant(fair)
        tokens[granted.team] += granted.cost
    for team, weight in weights.items():
        assert tokens[team] / sum(tokens.values()) == pytest.approx(weight / 7, rel=0.02)


def test_no_team_is_ever_ahead_of_another_by_more_than_a_request_each(rng: random.Random) -> None:
    fair = queue()
    for team in "ab":
        for _ in range(1_000):
            fair.push(place(team, rng.randrange(1, 1_000)))
    served: Counter[str] = Counter()
    for _ in range(1_500):
        granted = grant(fair)
        served[granted.team] += granted.cost
        if all(fair.team_depth(team, INTERACTIVE) for team in "ab"):
            assert abs(served["a"] - served["b"]) <= 2_000


def test_a_lone_team_gets_everything_in_its_order_of_arrival() -> None:
    fair = queue()
    places = [place("a", cost) for cost in (900, 1, 50, 50)]
    for one in places:
        fair.push(one)
    assert [grant(fair) for _ in places] == places
    assert fair.head() is None


def test_idleness_earns_nothing_and_a_newcomer_is_served_soon() -> None:
    fair = queue()
    for _ in range(100):
        fair.push(place("busy"))
    for _ in range(50):
        grant(fair)
    for _ in range(50):
        fair.push(place("late"))
    first = [grant(fair).team for _ in range(20)]
    assert 9 <= first.count("late") <= 11
    assert "late" in first[:2]


def test_a_heavy_team_cannot_starve_a_light_one() -> None:
    fair = queue()
    for _ in range(1_000):
        fair.push(place("heavy", 10_000, weight=1_000))
    fair.push(place("light", 10, weight=1))
    assert "light" in {grant(fair).team for _ in range(3)}


def test_batch_is_next_only_when_nothing_interactive_waits() -> None:
    fair = queue()
    fair.push(place("a", priority=BATCH))
    late = place("b")
    fair.push(late)
    assert grant(fair) is late
    assert grant(fair).priority is BATCH


def test_batch_is_not_next_even_if_all_that_is_interactive_was_looked_past() -> None:
    fair = queue()
    fair.push(place("a", priority=BATCH))
    blocked = place("a")
    fair.push(blocked)
    assert fair.head() is blocked
    fair.look_past(blocked)
    assert fair.head() is None
    fair.look_again()
    assert fair.head() is blocked


def test_who_was_looked_past_is_back_at_its_place() -> None:
    fair = queue()
    places = [place("a"), place("a"), place("b"), place("a")]
    for one in places:
        fair.push(one)
    seen = []
    while (head := fair.head()) is not None:
        seen.append(head)
        fair.look_past(head)
    assert set(seen) == set(places)
    fair.look_again()
    assert fair.waiting == 4
    assert [one for one in (grant(fair) for _ in range(4)) if one.team == "a"] == [
        places[0],
        places[1],
        places[3],
    ]


def test_granting_behind_someone_looked_past_charges_the_team_once() -> None:
    fair = queue()
    blocked, second, other = place("a"), place("a"), place("b")
    for one in (blocked, second, other):
        fair.push(one)
    fair.look_past(blocked)
    assert grant(fair) is other, "as if the one looked past had been served"
    assert grant(fair) is second
    fair.look_again()
    newcomer = place("b")
    fair.push(newcomer)
    assert [grant(fair), grant(fair)] == [blocked, newcomer]


def test_a_team_serves_who_is_due_first() -> None:
    fair = queue()
    places = []
    for due in (30.0, 10.0, 20.0, 10.0):
        places.append(place("a"))
        places[-1].order = due
        fair.push(places[-1])
    late, first, second, also_first = places
    assert [grant(fair) for _ in places] == [first, also_first, second, late]


def test_a_team_that_is_passed_lags_by_what_the_others_got() -> None:
    fair = queue()
    blocked = place("a", 100, weight=2)
    fair.push(blocked)
    for _ in range(10):
        fair.push(place("b", 100))
    for _ in range(5):
        fair.look_past(blocked)
        grant(fair)
        fair.look_again()
    assert fair.lag(blocked) == 2 * 400


def test_a_place_given_up_costs_its_team_nothing() -> None:
    fair = queue()
    quitters = [place("a", 10_000) for _ in range(20)]
    stayer = place("a", 10)
    for one in (*quitters, stayer, place("b", 10)):
        fair.push(one)
    for one in quitters:
        fair.remove(one)
        fair.remove(one)
    assert {grant(fair).team, grant(fair).team} == {"a", "b"}
    assert fair.waiting == 0


def test_a_retry_is_before_the_others_of_its_team_and_pays_once() -> None:
    fair = queue()
    for _ in range(10):
        fair.push(place("a"))
        fair.push(place("b"))
    first = grant(fair)
    retry = place(first.team)
    fair.push(retry, front=True)
    assert grant(fair) is retry
    assert Counter(grant(fair).team for _ in range(10)) == {"a": 5, "b": 5}


def test_a_retry_of_a_team_with_nothing_else_waiting_is_next() -> None:
    fair = queue()
    fair.push(place("a", 5_000))
    grant(fair)
    for _ in range(5):
        fair.push(place("b", 10))
    retry = place("a", 5_000)
    fair.push(retry, front=True)
    assert retry in {grant(fair), grant(fair)}


def test_corrected_costs_bring_the_shares_of_real_work_to_the_weights() -> None:
    """`loud` asks for 4,000 tokens and uses 100, `exact` asks for what it uses.

    What `loud` has in flight counts against it until it is corrected, so it starts behind, once.
    """
    fair = queue()
    for _ in range(2_000):
        fair.push(place("loud", 4_000))
        fair.push(place("exact", 100))
    running: list[Place] = []
    done: Counter[str] = Counter()
    for number in range(3_000):
        running.append(grant(fair))
        if len(running) > 8:
            ended = running.pop(0)
            fair.correct(ended, 100)
            done[ended.team] += number >= 500
    assert done["loud"] == pytest.approx(done["exact"], rel=0.02)


def test_a_newcomer_is_not_put_behind_estimates_that_were_corrected() -> None:
    fair = queue()
    for _ in range(1_000):
        fair.push(place("loud", 100_000))
    for _ in range(100):
        fair.correct(grant(fair), 10)
    fair.push(place("new", 10))
    assert "new" in [grant(fair).team for _ in range(3)]


def test_bounds_are_per_lane_and_per_team_and_named() -> None:
    fair = queue(waiting_max=3, per_team=2)
    for team in ("a", "a", "b"):
        assert fair.refusal(team, INTERACTIVE) is None
        fair.push(place(team))
    assert fair.refusal("c", INTERACTIVE) == "3 interactive requests wait already"
    assert fair.refusal("a", BATCH) is None
    grant(fair)
    fair.push(place("a"))
    fair.remove(next(one for one in fair if one.team == "b"))
    assert fair.refusal("a", INTERACTIVE) == "2 interactive requests of team `a` wait already"
    assert fair.refusal("b", INTERACTIVE) is None


def test_places_that_come_and_go_behind_a_blocked_head_leave_nothing_behind() -> None:
    fair = queue()
    fair.push(place("blocked", 1))
    for number in range(10_000):
        one = place(f"t{number % 7}")
        fair.push(one)
        fair.remove(one)
    lane = fair._lanes[INTERACTIVE]
    assert len(lane._heap) <= 2 * 8 + 8
    assert fair.waiting == 1


@given(st.lists(st.tuples(st.sampled_from("pptrcf"), st.integers(0, 3), st.integers(1, 9_999))))
def test_whatever_happens_everyone_queued_is_found_once_and_teams_keep_their_order(
    steps: list[tuple[str, int, int]],
) -> None:
    fair = queue()
    model: dict[tuple[str, Priority], list[Place]] = {}
    granted: list[Place] = []
    for act, team_number, amount in steps:
        team = f"t{team_number}"
        priority = BATCH if amount % 3 == 0 else INTERACTIVE
        waiting = model.setdefault((team, priority), [])
        if act in "pf":
            one = place(team, amount, 1 + amount % 5, priority)
            fair.push(one, front=act == "f")
            waiting.insert(0 if act == "f" else len(waiting), one)
        elif act == "t" and (head := fair.head()) is not None:
            fair.take(head)
            assert model[head.team, head.priority].pop(0) is head
            granted.append(head)
        elif act == "r" and waiting:
            one = waiting.pop(amount % len(waiting))
            fair.remove(one)
        elif act == "c" and granted:
            fair.correct(granted.pop(), amount)
        everyone = [one for places in model.values() for one in places]
        assert fair.waiting == len(everyone) == len(set(fair))
        assert set(fair) == set(everyone)
    while (head := fair.head()) is not None:
        assert head.priority is INTERACTIVE or fair.depth(INTERACTIVE) == 0
        fair.take(head)
        assert model[head.team, head.priority].pop(0) is head
    assert not any(model.values())
