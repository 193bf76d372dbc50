"""GPUs are claimed. Goal: none by two at once, none lost, and too few are said in numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.workers.gpus import Gpus, TooFewGpus
from tests.fakes.fake_gpus import FakeGpuLibrary


def eight() -> Gpus:
    return Gpus(map(str, range(8)))


def test_neighbours_are_given_and_long_gaps_kept() -> None:
    gpus = eight()
    with gpus.claim(1) as first, gpus.claim(1) as second, gpus.claim(4) as four:
        assert (first, second, four) == (("0",), ("1",), ("2", "3", "4", "5"))
        with gpus.claim(2) as last:
            assert last == ("6", "7")
    with gpus.claim(3), gpus.claim(2) as middle:
        assert middle == ("3", "4")
        with gpus.claim(1):
            assert gpus.free == 2
    with gpus.claim(8) as whole:
        assert whole == tuple("01234567")


def test_the_shortest_gap_that_fits_is_taken() -> None:
    gpus = eight()
    first, second = gpus.claim(2), gpus.claim(2)
    with first, second, gpus.claim(1):
        first.__exit__(None, None, None)
        with gpus.claim(2) as two:
            assert two == ("0", "1")


def test_scattered_ones_are_better_than_none() -> None:
    gpus = Gpus("abc")
    first = gpus.claim(1)
    with first, gpus.claim(1):
        first.__exit__(None, None, None)
        with gpus.claim(2) as two:
            assert two == ("a", "c")


def test_too_few_are_told_in_numbers() -> None:
    gpus = Gpus("0123")
    with (
        gpus.claim(2),
        pytest.raises(TooFewGpus, match="it needs 8 GPUs, this machine has 4, 2 are free") as told,
        gpus.claim(8),
    ):
        pass
    assert told.value.needed == 8
    none = "it needs 1 GPU, this machine has 0, 0 are free"
    with pytest.raises(TooFewGpus, match=none), Gpus(()).claim(1):
        pass
    assert gpus.free == gpus.count == 4


def test_a_cpu_needs_none() -> None:
    with Gpus(()).claim(0) as devices:
        assert devices == ()


def test_a_claim_is_released_by_an_error_and_its_end_is_told() -> None:
    gpus, told = eight(), list[int]()
    gpus.on_release = lambda: told.append(gpus.free)
    with pytest.raises(ZeroDivisionError), gpus.claim(3):
        raise ZeroDivisionError
    with gpus.claim(0):
        pass
    assert told == [8]


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, ("0", "1", "2")),
        ("2, 1", ("2", "1")),
        ("GPU-6d4a, GPU-11b2", ("GPU-6d4a", "GPU-11b2")),
        ("0,-1,2", ("0",)),
        ("", ()),
    ],
)
def test_what_this_process_may_use_is_what_there_is(
    tmp_path: Path, visible: str | None, devices: tuple[str, ...]
) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    gpus = Gpus.of_this_node(tmp_path, environ)
    with gpus.claim(gpus.count) as claimed:
        assert claimed == tuple(sorted(devices, key=devices.index))
    if visible is not None:
        told = f"CUDA_VISIBLE_DEVICES names {len(devices)}"
        with pytest.raises(TooFewGpus, match=told), gpus.claim(9):
            pass


Steps = st.lists(
    st.tuples(
        st.integers(0, 9),  # devices
        st.floats(0.0, 10.0),  # when it is asked for
        st.floats(0.0, 10.0),  # how long it is held
        st.none() | st.floats(0.0, 20.0),  # when its owner is cancelled
    ),
    max_size=30,
)


@given(Steps)
async def test_no_device_is_held_twice_and_all_are_free_in_the_end(
    steps: list[tuple[int, float, float, float | None]],
) -> None:
    gpus = eight()
    held: list[str] = []

    async def hold(number: int, at: float, seconds: float) -> None:
        await asyncio.sleep(at)
        try:
            with gpus.claim(number) as devices:
                held.extend(devices)
                assert len(devices) == number
                assert len(held) == len(set(held)) == gpus.count - gpus.free
                try:
                    await asyncio.sleep(seconds)
                finally:
                    for device in devices:
                        held.remove(device)
        except TooFewGpus:
            assert number > gpus.free

    async with asyncio.TaskGroup() as group:
        loop = asyncio.get_running_loop()
        for number, at, seconds, cancelled_at in steps:
            task = group.create_task(hold(number, at, seconds))
            if cancelled_at is not None:
                loop.call_later(cancelled_at, task.cancel)
    assert held == []
    assert gpus.free == gpus.count


def test_a_quarantine_outlives_the_process_and_ends_when_it_is_lifted() -> None:
    kept: dict[str, str] = {}

    def note(gpu: str, reason: str | None) -> None:
        if reason is None:
            del kept[gpu]
        else:
            kept[gpu] = reason

    library = FakeGpuLibrary(2)
    first = Gpus("01", library=library)
    first.note = note
    first.quarantine("1", "Xid 79: it has fallen off the bus")
    assert kept == {first.infos["1"].uuid: "Xid 79: it has fallen off the bus"}

    second = Gpus("01", library=library)
    second.note = note
    second.remember(kept)
    with second.claim(1) as only:
        assert only == ("0",)
        with pytest.raises(TooFewGpus, match="1 in quarantine"), second.claim(1):
            pass
    second.lift("1")
    assert kept == {}
    with second.claim(2) as both:
        assert both == ("0", "1")
