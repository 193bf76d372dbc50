"""Ids: of one length, never twice, whatever of the kernel's random bytes is drawn at a time."""

from __future__ import annotations

import pytest

from inferd.inference import Endpoint, new_attempt_id, new_request_id


def test_request_ids_are_32_digits_and_never_the_same() -> None:
    ids = [new_request_id() for _ in range(2_000)]
    assert len(set(ids)) == len(ids)
    assert {len(one) for one in ids} == {len("req_") + 32}
    digits = {digit for one in ids for digit in one.removeprefix("req_")}
    assert digits == set("0123456789abcdef")


@pytest.mark.parametrize("endpoint", Endpoint)
def test_attempt_ids_of_an_endpoint_have_one_length_and_share_no_part(endpoint: Endpoint) -> None:
    ids = [new_attempt_id(endpoint) for _ in range(1_000)]
    assert len({len(one) for one in ids}) == 1
    halves = [one[-32:-16] for one in ids] + [one[-16:] for one in ids]
    assert len(set(halves)) == len(halves)
