"""The watchdog on the real engine; `scripts/soak faults` does more of this, and takes minutes."""

from __future__ import annotations

import pytest

from scripts.soaks import faults
from tests.fakes.served import ServeProcess, using

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.real_time(timeout_s=420)]


async def test_a_long_prompt_is_no_hang_and_a_dead_or_stopped_scheduler_is_found(
    whole_inferd: ServeProcess,
) -> None:
    async with using(whole_inferd) as inferd:
        await faults.long_prompt(inferd)
        await faults.kill_scheduler(inferd)
        await faults.stop_scheduler(inferd)
