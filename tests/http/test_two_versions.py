"""A version for low load and one for the rest, such as speculative decoding and the plain one."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from inferd.storage.usage import UsageFilter, rows
from tests.fakes.engines import EngineProcess
from tests.fakes.gateway import Gateway, attached, gateway, toml, until
from tests.http.raw_connection import ask, chat, client_of, holding

pytestmark = pytest.mark.real_time

NAMED = "ads"
"""The team that always gets the version for low load."""
BELOW = 2


def speculative(engine: EngineProcess) -> str:
    """Version 2 takes what comes while it has little to do, and whatever its team asks."""
    takes = {"inflight_below": BELOW, "teams": [NAMED]}
    version = {"version": "2", "attached": attached(engine), "takes": takes}
    return f'[[models.versions]]\n{toml(version)}[[teams]]\nname = "{NAMED}"\n'


async def versions(inferd: Gateway) -> dict[str, str]:
    """The version that served each request, by request id."""
    await inferd.app.node.db.flush()
    found = await rows(inferd.app.node.db, UsageFilter())
    return {row.request_id: row.version for row in found if row.team != "system"}


async def test_load_and_team_choose_the_version(
    tmp_path: Path, paced: EngineProcess, twin: EngineProcess
) -> None:
    async with (
        gateway(tmp_path, paced, twin, workers=attached(paced), more=speculative(twin)) as inferd,
        AsyncExitStack() as held,
    ):
        others = {"Authorization": f"Bearer {await inferd.new_key(NAMED)}"}
        idle = await ask(inferd, chat(max_tokens=2))
        for number in range(BELOW):
            stream = await held.enter_async_context(client_of(inferd))
            stream.chat(holding(f"Hold this slot, {number}"))
            assert (await stream.head())[0] == 200
        busy = await ask(inferd, chat(max_tokens=2))
        named = await ask(inferd, chat(max_tokens=2), others)
        pinned = await ask(inferd, chat(max_tokens=2, model="chat@1"))
        await held.aclose()
        await until(lambda: not inferd.app.node.dispatch.in_flight)
        again = await ask(inferd, chat(max_tokens=2))
        served = await versions(inferd)
        wanted = ((idle, "2"), (busy, "1"), (named, "2"), (pinned, "1"), (again, "2"))
        for answer, version in wanted:
            assert answer.status == 200, answer.body
            assert answer.json["model"] == ("chat@1" if answer is pinned else "chat")
            assert served[answer.headers["x-request-id"]] == version


async def test_without_its_worker_nobody_waits_for_the_version_for_low_load(
    tmp_path: Path, fast: EngineProcess
) -> None:
    more = speculative(fast).replace(fast.base_url, "http://127.0.0.1:9")
    async with gateway(tmp_path, fast, more=more) as inferd:
        named = {"Authorization": f"Bearer {await inferd.new_key(NAMED)}"}
        for headers in (None, named):
            answer = await ask(inferd, chat(max_tokens=2), headers)
            assert answer.status == 200, answer.body
        assert set((await versions(inferd)).values()) == {"1"}
