from __future__ import annotations

from typing import Any

import pytest

from inferd.cli.batch_client import AWAY_S_MAX, CHECKED_S_MAX, BatchClient
from inferd.cli.chat_client import ApiError
from inferd.clock import monotonic


class Scripted(BatchClient):
    """Each look takes the next status of the script; None: nobody answers."""

    def __init__(self, *script: str | None) -> None:
        self.script = list(script)

    async def get(self, batch_id: str) -> dict[str, Any]:
        status = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if status is None:
            raise ApiError("nobody answers")
        return {"id": batch_id, "status": status}


async def seen(client: BatchClient) -> list[str]:
    return [batch["status"] async for batch in client.follow("batch_1")]


async def test_following_outlives_a_restart_and_not_more() -> None:
    assert await seen(Scripted("in_progress", None, None, "finalizing", "completed")) == [
        *("in_progress", "finalizing", "completed"),
    ]
    with pytest.raises(ApiError):
        await seen(Scripted(None, "completed"))
    began = monotonic()
    with pytest.raises(ApiError):
        await seen(Scripted("in_progress", None))
    assert AWAY_S_MAX <= monotonic() - began < AWAY_S_MAX + 5.0


async def test_the_check_is_waited_for_but_not_forever() -> None:
    checked = await Scripted("validating", "validating", "in_progress").checked("batch_1")
    assert checked["status"] == "in_progress"
    began = monotonic()
    assert (await Scripted("validating").checked("batch_1"))["status"] == "validating"
    assert CHECKED_S_MAX <= monotonic() - began < CHECKED_S_MAX + 1.0
