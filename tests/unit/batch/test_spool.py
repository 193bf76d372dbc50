"""The files of a running batch: what counts of them, whatever a disk has left."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.batch.spool import Spool

RESULTS = [b'{"id":"r_%d","response":%s}\n' % (n, b"[1]" * n) for n in range(6)]
ENDS = list(accumulate(map(len, RESULTS)))
EXPECTED = [(end, b'{"id":"r_%d",' % n) for n, end in enumerate(ENDS)]
WHOLE = b"".join(RESULTS)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(tmp_path / "spool")
    made.make()
    return made


@given(at=st.integers(0, len(WHOLE)))
def test_a_cut_file_keeps_what_is_before_the_cut(tmp_path_factory: Any, at: int) -> None:
    spool = Spool(tmp_path_factory.mktemp("spool"))
    spool.output.write_bytes(WHOLE[:at])
    assert spool.kept(spool.output, EXPECTED) == sum(end <= at for end in ENDS)


@given(at=st.integers(0, len(WHOLE) - 1), zeros=st.integers(1, 64))
def test_what_a_disk_has_filled_with_zeros_is_lost(
    tmp_path_factory: Any, at: int, zeros: int
) -> None:
    spool = Spool(tmp_path_factory.mktemp("spool"))
    hole = bytes(min(zeros, len(WHOLE) - at))
    spool.output.write_bytes(WHOLE[:at] + hole + WHOLE[at + len(hole) :])
    assert spool.kept(spool.output, EXPECTED) == sum(end <= at for end in ENDS)


@pytest.mark.parametrize(
    ("held", "kept"),
    [
        (WHOLE + b'{"id":"r_6",', 6),
        (b"".join([*RESULTS[:2], RESULTS[3], RESULTS[2], *RESULTS[4:]]), 2),
        (RESULTS[0][:2] + WHOLE, 0),
        (RESULTS[0] + RESULTS[1][:-1] + b" " + WHOLE[ENDS[1] :], 1),
        (b"", 0),
    ],
)
def test_results_must_follow_one_another(spool: Spool, held: bytes, kept: int) -> None:
    spool.output.write_bytes(held)
    assert spool.kept(spool.output, EXPECTED) == kept


def test_a_file_that_is_not_there_holds_nothing(spool: Spool) -> None:
    assert spool.kept(spool.output, EXPECTED) == 0
    assert spool.kept(spool.output, []) == 0


def test_what_is_written_replaces_what_did_not_count(spool: Spool) -> None:
    assert spool.append(spool.output, 0, WHOLE) == len(WHOLE)
    assert spool.append(spool.output, ENDS[1], RESULTS[2]) == ENDS[2]
    assert spool.output.read_bytes() == WHOLE[: ENDS[2]]
    spool.cut(spool.output, ENDS[0])
    assert spool.output.read_bytes() == RESULTS[0]
