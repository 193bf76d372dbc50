"""How an engine ends: drained, on both engines, and killed in the middle.

The real one is killed amid a stream in tests/process/test_serve_real_engine.py.
"""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.contract.client import Client
from tests.contract.conftest import Engines
from tests.fakes.engines import EngineProcess, connected

pytestmark = pytest.mark.real_time(timeout_s=120)


async def test_sigterm_refuses_probes_at_once_and_finishes_what_runs(
    shared_engine: EngineProcess,
) -> None:
    client = Client(shared_engine)
    body = client.chat("Finish this", max_tokens=150, ignore_eos=True)
    async with connected(shared_engine) as engine:
        async with client.stream(body) as stream:
            await stream.started()
            shared_engine.signal(signal.SIGTERM)
            await client.until_not_ready(limit_s=5)
            assert (await client.get("/health")).status == 503
            late = await client.ask(client.chat("A late one", max_tokens=2))
            assert late.status == 200
            told = await stream.rest()
        assert told.usage["completion_tokens"] == 150
        assert told.done
        assert await engine.exited(40) == 0


async def test_a_killed_engine_cuts_its_streams_without_done(engines: Engines) -> None:
    engine = engines.get("fake")
    client = Client(engine)
    async with client.stream(client.holding()) as stream:
        await stream.started()
        assert await stream.frame()
        engine.signal(signal.SIGKILL)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await stream.rest()
        async with connected(engine) as gone:
            assert await gone.exited() == -signal.SIGKILL
