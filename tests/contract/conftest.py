"""One fake and one real engine for all contract tests, started with the same flags.

Small limits (two running, three waiting) make full queues cheap to reach. A test may end its
engine: the next one that needs it gets a new one. Those that do are in the last module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes.engines import EngineProcess, launch_fake, launch_real, standing

CONTRACT_FLAGS = [
    *("--max-total-tokens", "4096", "--context-length", "2048"),
    *("--max-running-requests", "2", "--max-queued-requests", "3"),
]
CONTRACT_MODEL = "contract-model"
CONTRACT_KEY = "engine-key"
CONTRACT_SPEED = 10.0


class Engines:
    """Running engines by kind; starts what is asked for and not there."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._running: dict[str, EngineProcess] = {}

    def get(self, kind: str) -> EngineProcess:
        known = self._running.get(kind)
        if known is None or known.exit_code is not None:
            known = self._stack.enter_context(standing(self._launch(kind)))
            self._running[kind] = known
        return known

    def _launch(self, kind: str) -> EngineProcess:
        if kind == "real":
            return launch_real(
                self._folder,
                *CONTRACT_FLAGS,
                model=CONTRACT_MODEL,
                api_key=CONTRACT_KEY,
                dummy=False,
            )
        return launch_fake(
            self._folder,
            *CONTRACT_FLAGS,
            model=CONTRACT_MODEL,
            api_key=CONTRACT_KEY,
            speed=CONTRACT_SPEED,
        )


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    with ExitStack() as stack:
        yield Engines(tmp_path_factory.mktemp("engines"), stack)


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.engine, pytest.mark.slow])])
def shared_engine(request: pytest.FixtureRequest, engines: Engines) -> EngineProcess:
    """An engine with nothing to do."""
    return engines.get(request.param)
