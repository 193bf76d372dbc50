"""What the process allows itself before it serves."""

from __future__ import annotations

import resource

from inferd.app import allow_descriptors


def test_a_shells_limit_of_descriptors_is_not_that_of_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1_024, hard), hard))
    try:
        allow_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
