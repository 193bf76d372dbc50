"""PrefixHasher: equal keys exactly where whole prefixes are equal, long messages hashed once."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from inferd.routing.prefix import BLOCK_BYTES, REMEMBERED_BYTES, PrefixHasher

PARTS = st.lists(st.binary(max_size=3 * REMEMBERED_BYTES), max_size=6)


def keys(*parts: bytes, seed: str = "chat@1\0search") -> tuple[int, ...]:
    return PrefixHasher().prefix(seed, parts, 1_000).keys


def test_a_longer_prompt_begins_with_the_keys_of_its_prefix() -> None:
    system = b"s" * 1_000
    first = keys(system, b"one")
    second = keys(system, b"two" * 500)
    assert len(first) == 1_003 // BLOCK_BYTES
    assert second[: len(first)] == first


def test_one_byte_changes_every_key_behind_it() -> None:
    text = bytearray(b"x" * 10 * BLOCK_BYTES)
    before = keys(bytes(text))
    text[3 * BLOCK_BYTES] = 0
    after = keys(bytes(text))
    assert before[:3] == after[:3]
    assert not set(before[3:]) & set(after[3:])


def test_teams_and_versions_share_nothing() -> None:
    text = b"x" * 5_000
    assert not set(keys(text)) & set(keys(text, seed="chat@1\0other"))
    assert not set(keys(text)) & set(keys(text, seed="chat@2\0search"))


def test_a_hint_names_the_same_for_one_team_only_and_changes_no_block() -> None:
    hasher = PrefixHasher()
    text = [b"x" * 5_000]
    plain = hasher.prefix("chat@1\0search", text, 1_000)
    hinted = hasher.prefix("chat@1\0search", text, 1_000, "session")
    other_team = hasher.prefix("chat@1\0mail", text, 1_000, "session")
    short = hasher.prefix("chat@1\0search", [b"hi"], 10, "session")
    assert hinted.keys == plain.keys
    assert short.hint == hinted.hint not in {plain.hint, other_team.hint}
    assert (plain.hint, short.keys) == (None, ())


def test_a_shared_system_prompt_is_hashed_once() -> None:
    hasher = PrefixHasher()
    system = b"s" * 20_000
    for number in range(10):
        hasher.prefix("seed", [system, b"question %d" % number], 5_000)
    assert hasher.found == 9


def test_tokens_of_a_block_follow_from_the_estimate() -> None:
    prefix = PrefixHasher().prefix("seed", [b"x" * 2_240], 640)
    assert prefix.block_tokens == 64.0


@given(PARTS, st.integers(0, 5))
def test_neither_the_cut_into_messages_nor_the_memory_changes_a_key(
    parts: list[bytes], repeats: int
) -> None:
    hasher = PrefixHasher()
    whole = keys(b"".join(parts))
    for _ in range(repeats + 1):
        assert hasher.prefix("chat@1\0search", parts, 1_000).keys == whole
