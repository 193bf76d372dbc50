"""The watchdog's judgement: virtual hours of looks at scripted signs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.config.watchdog import Watchdog as Limits
from inferd.workers.watchdog import (
    LOOK_S,
    MUTE_FACTOR,
    Decision,
    Expectation,
    Finding,
    Processes,
    RankReport,
    Signs,
    Watchdog,
)

LIMITS = Limits()
D = Decision
IDLE = Signs(
    owed=0,
    begun=0,
    heard=0,
    ranks=(RankReport(1.0, busy=False),),
    engine_waiting=0,
    processes=Processes(),
)


@dataclass
class Watched:
    """A watchdog and the worker it looks at, with a clock."""

    limits: Limits = LIMITS
    now: float = 0.0
    signs: Signs = IDLE
    found: list[tuple[float, Finding]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dog = Watchdog(self.now)

    def look(self, **signs: object) -> None:
        self.signs = replace(self.signs, **signs)  # type: ignore[arg-type]
        self.now += LOOK_S
        if found := self.dog.look(self.now, self.limits, self.signs):
            self.found.append((self.now, found))

    def hears(self, **signs: object) -> None:
        """A look at which an answer has gone on."""
        ranks = tuple(replace(rank, at=rank.at + 1) for rank in self.signs.ranks or ())
        self.look(**{"heard": self.signs.heard + 1, "ranks": ranks, **signs})

    def gets_on(self, **signs: object) -> None:
        """A look at which the scheduler has got on, but no answer."""
        ranks = tuple(RankReport(rank.at + 1, busy=True) for rank in self.signs.ranks or ())
        self.look(ranks=ranks, **signs)

    def still(self, seconds: float, cores: float = 0.0, **signs: object) -> None:
        """So long a time without a sign."""
        for _ in range(int(seconds / LOOK_S)):
            cpu_s = self.signs.processes.cpu_s + cores * LOOK_S
            processes = replace(self.signs.processes, cpu_s=cpu_s)
            self.look(**{"processes": processes, **signs})

    @property
    def decisions(self) -> list[Decision]:
        return [found.decision for _, found in self.found]

    @property
    def evidence(self) -> str:
        return self.found[-1][1].evidence


def busy(expected: Expectation | None = None) -> Watched:
    watched = Watched()
    watched.hears(
        owed=3,
        begun=3,
        ranks=(RankReport(1.0, busy=True),),
        expected=expected or Expectation(step_s=0.05),
    )
    return watched


def test_a_silent_worker_with_work_is_suspected_then_given_up_within_seconds() -> None:
    watched = busy()
    began = watched.now
    watched.still(12)
    assert watched.decisions == [D.SUSPECTED, D.HUNG]
    (suspected_at, _), (given_up_at, finding) = watched.found
    assert 5 <= suspected_at - began <= 6
    assert 10 <= given_up_at - began <= 11
    assert "3 answers owed, 3 of them begun; no sign of progress for 10." in finding.evidence
    assert "its load report stands still" in finding.evidence


def test_one_that_burns_its_processors_without_a_sign_is_stalled() -> None:
    watched = busy()
    watched.still(12, cores=8.0)
    assert watched.decisions == [D.SUSPECTED, D.STALLED]
    assert "8.00 cores used" in watched.evidence


def test_a_long_prefill_that_blocks_every_probe_is_left_alone() -> None:
    prefill_s = 60.0
    watched = Watched()
    watched.look(owed=1, ranks=None, expected=Expectation(backlog_s=prefill_s / 4, step_s=0.01))
    watched.still(prefill_s, cores=1.0)
    watched.hears(begun=1, expected=Expectation(step_s=0.01))
    watched.still(4)
    assert set(watched.decisions) <= {D.SUSPECTED, D.CLEARED}


def test_and_one_that_hangs_in_it_is_given_up_when_it_should_long_be_through() -> None:
    watched = Watched()
    watched.look(owed=1, ranks=None, expected=Expectation(backlog_s=15.0))
    watched.still(10 + 6 * 15 + 1)
    assert watched.decisions == [D.SUSPECTED, D.HUNG]
    assert "no probe answered for" in watched.evidence


@given(step_s=st.floats(0.01, 9.0), hours=st.integers(1, 3))
def test_a_slow_decode_is_never_suspected(step_s: float, hours: int) -> None:
    watched = busy(Expectation(step_s=step_s))
    every = max(1, int(step_s / LOOK_S))
    for number in range(hours * 200):
        watched.hears() if number % every == 0 else watched.look()
    assert watched.decisions == []


def test_chunks_of_a_prompt_are_signs_however_wrong_the_prediction_is() -> None:
    watched = Watched()
    watched.look(owed=1, ranks=(RankReport(0.0, busy=True),))
    for _ in range(200):
        watched.gets_on()
        watched.still(4)
    assert watched.decisions == []


def test_whole_answers_say_nothing_until_their_end_and_need_not() -> None:
    watched = Watched()
    watched.look(owed=2, begun=0, ranks=(RankReport(0.0, busy=True),))
    for _ in range(2_000):
        watched.gets_on()
    assert watched.decisions == []


def test_the_prompt_of_a_whole_answer_may_be_computed_still_when_it_is_thought_to_run() -> None:
    watched = Watched()
    watched.look(owed=1, begun=0, expected=Expectation(again_s=10.0, step_s=0.05))
    watched.still(69, cores=1.0)
    assert watched.decisions == [D.SUSPECTED]
    watched.still(3, cores=1.0)
    assert watched.decisions == [D.SUSPECTED, D.STALLED]


def test_an_answer_that_was_taken_back_may_be_silent_for_as_long_as_it_is_computed_again() -> None:
    watched = busy(Expectation(step_s=0.05, again_s=10.0))
    watched.still(60, engine_waiting=1)
    assert watched.decisions == [D.SUSPECTED]
    watched.hears(engine_waiting=0)
    assert watched.decisions == [D.SUSPECTED, D.CLEARED]


def test_a_retracted_stream_beside_others_is_not_even_noticed() -> None:
    watched = busy()
    for _ in range(500):
        watched.hears(engine_waiting=1)
    assert watched.decisions == []


def test_a_scheduler_that_works_while_nothing_comes_out_is_mute() -> None:
    watched = busy()
    while not watched.found or watched.found[-1][1].decision is D.SUSPECTED:
        watched.gets_on()
        assert watched.now < 60
    assert watched.decisions == [D.SUSPECTED, D.MUTE]
    assert watched.now == pytest.approx(MUTE_FACTOR * (10 + 6 * 0.05), abs=2)


def test_one_rank_that_stands_still_among_those_that_get_on_is_found() -> None:
    watched = busy()
    ranks = (RankReport(1.0, busy=True), RankReport(1.0, busy=True))
    for number in range(80):
        watched.hears(ranks=(replace(ranks[0], at=float(number)), ranks[1]))
    assert watched.decisions[:2] == [D.SUSPECTED, D.HUNG]


def test_a_scheduler_that_says_it_has_nothing_to_do_has_lost_what_it_owes() -> None:
    watched = busy()
    while not watched.found or watched.found[-1][1].decision is D.SUSPECTED:
        at = watched.now
        watched.look(ranks=(RankReport(at, busy=False),), owed=1, begun=0)
        assert watched.now < 60
    assert watched.decisions == [D.SUSPECTED, D.MUTE]
    assert "its scheduler reports that it has nothing to do" in watched.evidence
    assert watched.now > 30


def test_a_dead_part_is_a_verdict_at_once_with_or_without_work() -> None:
    for watched in (busy(), Watched()):
        watched.look(processes=Processes(dead=("sglang::scheduler_TP3 (12)",)))
        assert watched.decisions == [D.PART_DIED]
        assert watched.evidence == "its process sglang::scheduler_TP3 (12) is gone"


def test_a_process_that_is_stopped_for_long_is_a_verdict_without_work_too() -> None:
    watched = Watched()
    watched.still(9, processes=Processes(stopped=("sglang::scheduler (7)",)))
    watched.look(processes=Processes())  # a debugger looked in, and went
    watched.still(11, processes=Processes(stopped=("sglang::scheduler (7)",)))
    assert watched.decisions == [D.SUSPENDED]


def test_an_idle_worker_is_never_hung_and_must_only_answer_probes() -> None:
    watched = Watched()
    watched.still(3_600)
    watched.still(29, ranks=None)
    assert watched.decisions == []
    watched.still(2)
    assert watched.decisions == [D.UNREACHABLE]


def test_slow_clients_are_not_the_workers_fault() -> None:
    watched = busy()
    watched.still(600, owed=0, begun=0)
    assert watched.decisions == []


def test_what_this_process_slept_through_is_held_against_nobody() -> None:
    watched = busy()
    watched.now += 3_600.0
    watched.look()
    watched.hears()
    assert watched.decisions == []
    watched.still(12)
    assert watched.decisions == [D.SUSPECTED, D.HUNG]


def test_the_ceiling_holds_however_long_the_prompts() -> None:
    watched = Watched()
    watched.look(owed=1, expected=Expectation(backlog_s=1e6))
    watched.still(599)
    assert watched.decisions == [D.SUSPECTED]
    watched.still(3)
    assert watched.decisions == [D.SUSPECTED, D.HUNG]


def test_growth_is_told_once() -> None:
    watched = Watched(Limits(memory_bytes_max=1 << 30))
    watched.still(10, processes=Processes(resident_bytes=1 << 30))
    watched.still(10, processes=Processes(resident_bytes=(1 << 30) + 1))
    assert watched.decisions == [D.OVERSIZED]


def test_an_idle_worker_is_asked_for_a_token_now_and_then() -> None:
    watched = Watched()
    watched.still(299)
    assert not watched.dog.wants_health(LIMITS, watched.signs)
    watched.still(2)
    assert watched.dog.wants_health(LIMITS, watched.signs)
    assert watched.dog.health(good=True) is None
    assert not watched.dog.wants_health(LIMITS, watched.signs)
    watched.still(301)
    assert watched.dog.health(good=False) is None
    watched.look()
    assert watched.dog.wants_health(LIMITS, watched.signs), "a bad one is asked again soon"
    finding = watched.dog.health(good=False)
    assert finding is not None
    assert finding.decision is D.UNHEALTHY
    assert not Watched().dog.wants_health(Limits(health_idle_s=0), IDLE)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4), st.booleans(), st.booleans(), st.booleans(), st.floats(0.1, 30)
        ),
        max_size=200,
    )
)
def test_no_verdict_comes_sooner_than_the_limit_after_the_last_sign(
    script: list[tuple[int, bool, bool, bool, float]],
) -> None:
    """Whatever the signs: with all processes alive and running, silence alone is judged."""
    watched = Watched()
    last_sign = 0.0
    for owed, hears, answers, scheduler_moves, _ in script:
        rank = RankReport(watched.now if scheduler_moves else 1.0, busy=owed > 0)
        before = len(watched.found)
        heard = watched.signs.heard + hears
        watched.look(owed=owed, begun=owed, heard=heard, ranks=(rank,) if answers else None)
        for at, finding in watched.found[before:]:
            if finding.decision is D.HUNG:
                assert at - last_sign >= LIMITS.silence_s - LOOK_S
        if hears or not owed:
            last_sign = watched.now


@given(st.floats(0.5, 1e4), st.floats(0.0, 1e3), st.floats(0.0, 1e2))
def test_more_work_is_never_allowed_less_time(silence_s: float, less: float, more: float) -> None:
    limits = Limits(silence_s=silence_s)
    short = Watchdog.allowed_s(limits, replace(IDLE, expected=Expectation(less)))
    longer = Watchdog.allowed_s(limits, replace(IDLE, expected=Expectation(less + more)))
    assert short <= longer <= limits.silence_s_max
