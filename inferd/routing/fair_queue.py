"""Start-time fair queue over teams, in two lanes: batch is looked at only when nothing else waits.

Owns who waits and the virtual time. A team's start tag grows by cost / weight with every grant; the
team with the smallest tag is next, in its own order: by due time, then arrival. A team that was
idle starts at the virtual time, so idleness earns nothing. Costs are estimates and may be corrected
afterwards. Tags are made for heads only, so a place given up costs nobody anything.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import Generic, TypeVar

from inferd.inference import Priority


class Place:
    """One request's place in the queue: subclass it with what shall wait.

    `order` sorts the places of one team: a loop time by which each should be served, or 0 for all.
    """

    __slots__ = ("cost", "is_queued", "order", "priority", "sorted_by", "team", "weight")

    def __init__(self, team: str, priority: Priority, weight: int, cost: int) -> None:
        assert weight >= 1, weight
        assert cost >= 0, cost
        self.team = team
        self.priority = priority
        self.weight = weight
        self.cost = cost
        self.order = 0.0
        self.is_queued = False
        self.sorted_by = (0.0, 0)


P = TypeVar("P", bound=Place)
_sorted_by = attrgetter("sorted_by")


class _Team(Generic[P]):
    """`start`: tag of its head while it waits. `finish`: where its next tag begins otherwise.

    `passed` of its places were looked past in this round; `ahead` is what they would have added to
    its tag, so that whoever is behind them is looked at when its turn would have come.
    """

    __slots__ = ("ahead", "entry", "finish", "passed", "start", "waiting")

    def __init__(self) -> None:
        self.waiting: list[P] = []
        self.start = 0.0
        self.finish = 0.0
        self.passed = 0
        self.ahead = 0.0
        self.entry = 0
        """Number of its one valid entry in the heap; 0 if it has none."""


class _Lane(Generic[P]):
    """One priority: its teams, its heap of teams that wait, its virtual time.

    Tags within one `slack` count as equal: among those teams, who is due first goes first.
    """

    def __init__(self) -> None:
        self.slack = 0.0
        self.depth = 0
        self.virtual = 0.0
        self.teams: dict[str, _Team[P]] = {}
        self._looked_past: list[_Team[P]] = []
        self._heap: list[tuple[float, float, int, _Team[P]]] = []
        self._entries = itertools.count(1)
        self._arrivals = itertools.count(1)

    def team(self, name: str) -> _Team[P]:
        team = self.teams.get(name)
        if team is None:
            team = self.teams[name] = _Team()
        return team

    def push(self, place: P, *, front: bool) -> None:
        team = self.team(place.team)
        refund = place.cost / place.weight if front else 0.0
        if team.waiting:
            team.start -= refund
        else:
            team.start = max(self.virtual, team.finish - refund)
        number = next(self._arrivals)
        place.sorted_by = (-math.inf, -number) if front else (place.order, number)
        if team.waiting:
            insort(team.waiting, place, key=_sorted_by)
        else:
            team.waiting.append(place)
        if front or not team.entry or (self.slack and team.waiting[team.passed] is place):
            self._enter(team, before_equals=front)
        self.depth += 1

    def head(self) -> P | None:
        heap = self._heap
        while heap and heap[0][3].entry != heap[0][2]:
            heapq.heappop(heap)
        if not heap:
            return None
        team = heap[0][3]
        return team.waiting[team.passed]

    def take(self, place: P) -> None:
        team = self.teams[place.team]
        # Not the largest tag so far: corrections may have moved everybody back, and a newcomer
        # must start beside the others, not where their estimates once were.
        self.virtual = team.start
        team.finish = team.start + place.cost / place.weight
        team.start = team.finish
        self.remove(place)
        if team.passed < len(team.waiting):
            self._enter(team)

    def remove(self, place: P) -> None:
        """Whoever is next in the team moves up, at the tag as it is."""
        team = self.teams[place.team]
        at = 0
        if team.waiting[0] is not place:
            at = bisect_left(team.waiting, place.sorted_by, key=_sorted_by)
        assert team.waiting[at] is place
        del team.waiting[at]
        self.depth -= 1
        if at < team.passed:
            team.passed -= 1
        if team.passed >= len(team.waiting):
            team.entry = 0
        elif self.slack and at == team.passed:
            self._enter(team)

    def look_past(self, place: P) -> None:
        team = self.teams[place.team]
        assert team.waiting[team.passed] is place
        if not team.passed:
            self._looked_past.append(team)
        team.passed += 1
        team.ahead += place.cost / place.weight
        if team.passed < len(team.waiting):
            self._enter(team)
        else:
            team.entry = 0

    def look_again(self) -> None:
        for team in self._looked_past:
            team.passed = 0
            team.ahead = 0.0
            if team.waiting:
                self._enter(team)
        self._looked_past.clear()

    def sort_again(self) -> None:
        """Every tag in the heap is made anew."""
        self._heap.clear()
        for team in self.teams.values():
            if team.entry:
                self._enter(team)

    def correct(self, name: str, difference: float) -> None:
        team = self.team(name)
        team.finish += difference
        if team.waiting:
            team.start += difference
            if team.entry:
                self._enter(team)

    def _enter(self, team: _Team[P], *, before_equals: bool = False) -> None:
        """The team's tag in the heap is its present one; an older entry becomes void."""
        number = next(self._entries)
        team.entry = -number if before_equals else number
        tag = team.start + team.ahead
        if self.slack:
            key = (tag // self.slack, team.waiting[team.passed].sorted_by[0], team.entry, team)
        else:
            key = (tag, 0.0, team.entry, team)
        heapq.heappush(self._heap, key)
        if len(self._heap) > 2 * len(self.teams) + 8:
            self._heap = [entry for entry in self._heap if entry[3].entry == entry[2]]
            heapq.heapify(self._heap)


class FairQueue(Generic[P]):
    """Bounded per lane and per team. Retries are let in beyond the bounds: each had a lease."""

    def __init__(self, waiting_max: int, waiting_per_team_max: int) -> None:
        self.waiting_max = waiting_max
        self.waiting_per_team_max = waiting_per_team_max
        self.waiting = 0
        """Places in both lanes."""
        self._lanes: dict[Priority, _Lane[P]] = {priority: _Lane() for priority in Priority}
        self._interactive = self._lanes[Priority.INTERACTIVE]
        self._batch = self._lanes[Priority.BATCH]

    def __iter__(self) -> Iterator[P]:
        """Everyone who waits, in no promised order."""
        for lane in self._lanes.values():
            for team in lane.teams.values():
                yield from team.waiting

    def depth(self, priority: Priority) -> int:
        return self._lanes[priority].depth

    def team_depth(self, team: str, priority: Priority) -> int:
        known = self._lanes[priority].teams.get(team)
        return len(known.waiting) if known else 0

    def refusal(self, team: str, priority: Priority) -> str | None:
        """Which bound another place of this team would break, in words; None if it may wait."""
        if self.depth(priority) >= self.waiting_max:
            return f"{self.waiting_max} {priority} requests wait already"
        if self.team_depth(team, priority) >= self.waiting_per_team_max:
            return f"{self.waiting_per_team_max} {priority} requests of team `{team}` wait already"
        return None

    def push(self, place: P, *, front: bool = False) -> None:
        """Wait behind the team's others, or with `front` before them.

        `front` is for a retry: what its first grant charged is taken back until the next one.
        """
        assert not place.is_queued
        place.is_queued = True
        self.waiting += 1
        self._lanes[place.priority].push(place, front=front)

    def head(self) -> P | None:
        """Who is next and was not looked past."""
        if self._interactive.depth:
            return self._interactive.head()
        return self._batch.head()

    def allow(self, slack: float) -> None:
        """From now on teams whose tags are this near may be served by due time, not by tag."""
        for lane in self._lanes.values():
            if lane.slack != slack:
                lane.slack = slack
                lane.sort_again()

    def waiting_of(self, team: str, priority: Priority) -> list[P]:
        """A team's places in its order. Not to be changed."""
        known = self._lanes[priority].teams.get(team)
        return known.waiting if known else []

    def lag(self, place: Place) -> float:
        """By how much cost the place's team is behind whoever was granted last; negative: ahead."""
        lane = self._lanes[place.priority]
        team = lane.teams.get(place.team)
        return (lane.virtual - team.start) * place.weight if team else 0.0

    def tag(self, place: Place) -> float:
        """The start tag of the place's team."""
        team = self._lanes[place.priority].teams.get(place.team)
        return team.start if team else 0.0

    def take(self, place: P) -> None:
        """The head is granted: its team is charged."""
        place.is_queued = False
        self.waiting -= 1
        self._lanes[place.priority].take(place)

    def remove(self, place: P) -> None:
        """Given up, at no charge. One that does not wait (any more) is left alone."""
        if place.is_queued:
            place.is_queued = False
            self.waiting -= 1
            self._lanes[place.priority].remove(place)

    def look_past(self, place: P) -> None:
        """The head cannot be granted now: look at who is behind it, until `look_again`."""
        self._lanes[place.priority].look_past(place)

    def look_again(self) -> None:
        """Everyone looked past is back where it was."""
        self._interactive.look_again()
        self._batch.look_again()

    def correct(self, place: Place, actual_cost: int) -> None:
        """The place was granted at `cost` and turned out to cost this much."""
        difference = (actual_cost - place.cost) / place.weight
        self._lanes[place.priority].correct(place.team, difference)
