"""One fake and one real engine for all contract tests, started with the same flags.

Small limits (two running, three waiting) make full queues cheap to reach. Tests that end their
engine get one of their own, the real one with two layers of random weights: it only must run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.engines import EngineProcess, launch_fake, launch_real, standing

CONTRACT_FLAGS = [
    *("--max-total-tokens", "4096", "--context-length", "2048"),
    *("--max-running-requests", "2", "--max-queued-requests", "3"),
]
CONTRACT_MODEL = "contract-model"
CONTRACT_KEY = "engine-key"
CONTRACT_SPEED = 10.0


def _launch(kind: str, factory: pytest.TempPathFactory, *, dummy: bool) -> EngineProcess:
    folder = factory.mktemp(kind)
    if kind == "fake":
        return launch_fake(
            folder,
            *CONTRACT_FLAGS,
            model=CONTRACT_MODEL,
            api_key=CONTRACT_KEY,
            speed=CONTRACT_SPEED,
        )
    return launch_real(
        folder, *CONTRACT_FLAGS, model=CONTRACT_MODEL, api_key=CONTRACT_KEY, dummy=dummy
    )


REAL = pytest.param("real", marks=[pytest.mark.engine, pytest.mark.slow])


@pytest.fixture(scope="session", params=["fake", REAL])
def shared_engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineProcess]:
    """An engine that every contract test leaves idle."""
    with standing(_launch(request.param, tmp_path_factory, dummy=False)) as process:
        yield process


@pytest.fixture(params=["fake", REAL])
def own_engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineProcess]:
    """An engine that the test may end."""
    with standing(_launch(request.param, tmp_path_factory, dummy=True)) as process:
        yield process
