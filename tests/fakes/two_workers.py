"""Two real engines behind one `inferd serve`, and two teams of weights 1 and 3."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.fakes.decision_rig import Chat
from tests.fakes.served import MODEL, START_S, Served, command, served

LIGHT: Final = "light"
HEAVY: Final = "heavy"
PLACES: Final = 3
"""Requests that one engine runs at a time: few, so that teams wait."""


def _config(text: str) -> str:
    text = text.replace("running_max = 16", f"running_max = {PLACES}\nthreads = 1")
    text = text.replace("drain_s = 10.0", "drain_s = 10.0\ncount = 2")
    return f'{text}\n[[teams]]\nname = "{LIGHT}"\n\n[[teams]]\nname = "{HEAVY}"\nweight = 3\n'


@asynccontextmanager
async def two_workers(
    folder: Path, *, dummy: bool = True
) -> AsyncIterator[tuple[Served, dict[str, Chat]]]:
    async with served(folder, dummy=dummy, edit=_config) as inferd:
        async with asyncio.timeout(START_S):
            while True:
                workers = (await inferd.status())["pools"][0]["workers"]
                if [worker["state"] for worker in workers] == ["ready", "ready"]:
                    break
                await asyncio.sleep(0.1)
        chats = {}
        for team in (LIGHT, HEAVY):
            code, key, error = await command(folder, "keys", "create", "--team", team, "--quiet")
            assert code == 0, error
            chats[team] = Chat(inferd.http, inferd.base_url, key.strip(), MODEL)
        yield inferd, chats
