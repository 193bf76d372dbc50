"""What the process allows itself before it serves."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator

import pytest

from inferd.app import DESCRIPTORS_BESIDE, allow_descriptors


@pytest.fixture(autouse=True)
def _limits_as_before() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_shells_limit_of_descriptors_is_not_that_of_connections() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1_024, hard), hard))
    allow_descriptors(100)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


def test_a_hard_limit_below_what_is_configured_is_told_with_the_next_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = (hard - DESCRIPTORS_BESIDE) // 2
    with caplog.at_level(logging.WARNING):
        allow_descriptors(enough)
        assert not caplog.records
        allow_descriptors(enough + 1)
    (record,) = caplog.records
    told = record.getMessage()
    assert f"enough for {enough} streams at once" in told
    assert f"server.connections_max is {enough + 1}" in told
    assert "LimitNOFILE" in told
