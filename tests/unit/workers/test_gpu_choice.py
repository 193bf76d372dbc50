"""Which devices a worker gets. Goal: near ones, and what belongs together stays whole."""

from __future__ import annotations

import pytest

from inferd.errors import NotFound
from inferd.workers.gpus import Gpus, TooFewGpus
from tests.fakes.fake_gpus import FakeGpuLibrary

PAIRS = [(0, 3), (1, 2), (4, 7), (5, 6)]


def eight() -> Gpus:
    return Gpus(map(str, range(8)), library=FakeGpuLibrary(8, PAIRS))


def test_two_are_joined_by_nvlink_and_four_on_one_socket() -> None:
    gpus = eight()
    with gpus.claim(2) as two, gpus.claim(4) as four:
        assert two == ("0", "3")
        assert four == ("4", "5", "6", "7")
        with gpus.claim(2) as last:
            assert last == ("1", "2")
    with gpus.claim(8) as whole:
        assert len(whole) == 8


def test_a_single_one_is_taken_from_a_pair_that_is_broken_already() -> None:
    gpus = eight()
    with gpus.claim(1) as first, gpus.claim(1) as second, gpus.claim(2) as two:
        assert {*first, *second} == {"0", "3"}
        assert two == ("1", "2")


def test_devices_named_by_the_environment_are_found_in_the_library() -> None:
    library = FakeGpuLibrary(8, PAIRS)
    gpus = Gpus.of_this_node(environ={"CUDA_VISIBLE_DEVICES": "GPU-0005,2,1"}, library=library)
    assert [gpus.infos[name].index for name in gpus.devices] == [5, 2, 1]
    with gpus.claim(2) as two:
        assert set(two) == {"1", "2"}


def test_equally_near_ones_are_neighbours() -> None:
    everybody = [(a, b) for b in range(4) for a in range(b)]
    gpus = Gpus("0123", library=FakeGpuLibrary(4, everybody))
    with gpus.claim(1), gpus.claim(2) as two:
        assert two == ("1", "2")


def test_sixteen_are_chosen_quickly_too() -> None:
    gpus = Gpus(map(str, range(16)), library=FakeGpuLibrary(16))
    with gpus.claim(8) as half, gpus.claim(8) as other:
        assert sorted(map(int, half)) == list(range(8))
        assert sorted(map(int, other)) == list(range(8, 16))


def test_one_in_quarantine_is_not_given_out_and_its_reason_stays() -> None:
    gpus, told = eight(), list[tuple[str, str]]()
    gpus.on_quarantine = lambda device, reason: told.append((device, reason))
    with gpus.claim(8):
        gpus.quarantine("3", "too hot")
        gpus.quarantine("3", "something else")
        assert gpus.free == 0
    assert told == [("3", "too hot")]
    assert gpus.free == 7
    with gpus.claim(2) as two:
        assert two == ("1", "2")
    with pytest.raises(TooFewGpus, match="8, 7 are free, 1 in quarantine"), gpus.claim(8):
        pass
    gpus.lift("3")
    assert gpus.free == 8
    with pytest.raises(NotFound, match="There is no GPU '9'; there are: 0, 1"):
        gpus.lift("9")


def test_what_is_held_for_somebody_is_claimed_by_nobody_else() -> None:
    gpus, told = eight(), list[int]()
    gpus.on_release = lambda: told.append(gpus.free)
    gpus.hold("earlier", ["4", "7", "99"])
    gpus.hold("another", ["0"])
    assert (gpus.free, gpus.held("earlier"), gpus.held("nobody")) == (5, 2, 0)
    with gpus.claim(2, "earlier") as mine:
        assert mine == ("4", "7")
        gpus.let_go("earlier")
        assert gpus.free == 5
    gpus.let_go("another")
    assert gpus.free == 8
    assert told == [7, 8]
