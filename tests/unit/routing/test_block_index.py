"""BlockIndex: who was sent what, for as long as an engine of that size would keep it."""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import given

from inferd.routing.block_index import BlockIndex


def test_depths_are_the_leading_blocks_of_each_target() -> None:
    index = BlockIndex()
    a, b, c = (index.add_target() for _ in range(3))
    index.insert(a, (1, 2, 3), 100)
    index.insert(b, (1, 2, 9), 100)
    index.insert(c, (2, 3), 100)
    assert index.depths((1, 2, 3, 4)) == {a: 3, b: 2}
    assert index.depths((7,)) == {}
    assert index.depths(()) == {}


def test_the_oldest_prompt_goes_first_and_its_end_before_its_start() -> None:
    index = BlockIndex()
    bit = index.add_target()
    index.insert(bit, (1, 2, 3), 5)
    index.insert(bit, (1, 8, 9), 4)
    assert index.depths((1, 8, 9)) == {bit: 3}
    assert index.depths((1, 2, 3)) == {bit: 2}
    assert index.held(bit) == 4


def test_a_target_that_goes_takes_its_blocks_and_its_number_is_used_again() -> None:
    index = BlockIndex()
    first, second = index.add_target(), index.add_target()
    index.insert(first, (1, 2), 10)
    index.insert(second, (1,), 10)
    index.remove_target(first)
    assert len(index) == 1
    assert index.add_target() == first
    assert index.depths((1, 2)) == {second: 1}


def test_memory_is_bounded_by_the_caches(rng: random.Random) -> None:
    index = BlockIndex()
    bits = [index.add_target() for _ in range(4)]
    for number in range(2_000):
        start = rng.randrange(10**9)
        index.insert(rng.choice(bits), range(start, start + 20), 100)
        assert len(index) <= 400, number
    for bit in bits:
        index.remove_target(bit)
    assert len(index) == 0
    assert not index._owner


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ird"), st.integers(0, 5), st.lists(st.integers(0, 12), max_size=8)
        ),
        max_size=60,
    )
)
def test_owners_and_lists_always_agree(steps: list[tuple[str, int, list[int]]]) -> None:
    index = BlockIndex()
    bits: list[int] = []
    for act, number, blocks in steps:
        if act == "i" and bits:
            index.insert(bits[number % len(bits)], blocks, 6)
        elif act == "r":
            bits.append(index.add_target())
        elif bits:
            index.remove_target(bits.pop(number % len(bits)))
        for bit in bits:
            assert index.held(bit) <= 6
        owned = {(block, bit) for bit in bits for block in index._lists[bit]}
        found = {
            (block, bit)
            for block, flags in index._owner.items()
            for bit in range(flags.bit_length())
            if flags >> bit & 1
        }
        assert owned == found
