"""What the kernel tells of an engine's parts, and what it means when it tells nothing."""

from __future__ import annotations

import os
import resource
import subprocess

from inferd.workers.vital_signs import Parts


def test_a_part_that_cannot_be_looked_at_is_not_dead() -> None:
    part = subprocess.Popen(["sglang::scheduler", "600"], executable="/bin/sleep")
    try:
        parts = Parts(os.getsid(0))
        assert parts.look().dead == ()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))  # no descriptor is free
        try:
            assert parts.look().dead == ()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    finally:
        part.kill()
        part.wait()
    assert parts.look().dead == (f"sglang::scheduler ({part.pid})",)
