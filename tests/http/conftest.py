"""The fake engines that all of tests/http share, and a look at every log record."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from inferd.logs import JsonFormatter
from tests.fakes.engines import EngineProcess, launch_fake, standing
from tests.fakes.gateway import MODEL, Gateway

FAST = 200.0
"""A token takes about 0.2 ms: for answers that are read to their end."""
PACED = 4.0
"""A token takes about 10 ms: for answers that something happens to on the way."""


@pytest.fixture(scope="session")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with standing(launch_fake(tmp_path_factory.mktemp("fast"), model=MODEL, speed=FAST)) as process:
        yield process


@pytest.fixture(scope="session")
def paced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    folder = tmp_path_factory.mktemp("paced")
    with standing(launch_fake(folder, model=MODEL, speed=PACED)) as process:
        yield process


@pytest.fixture(scope="session")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Another one like `paced`."""
    folder = tmp_path_factory.mktemp("twin")
    with standing(launch_fake(folder, model=MODEL, speed=PACED)) as process:
        yield process


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Turns texts into vectors, and dies of anything else."""
    folder = tmp_path_factory.mktemp("embedder")
    with standing(launch_fake(folder, "--is-embedding", model=MODEL, speed=FAST)) as process:
        yield process


PROMPTS = ("Tell me a story", "Hold this slot")
"""What most tests ask for: prompts are nobody's business in a log."""
ALARMS = ("inferd.api", "inferd.dispatch", "asyncio")
"""Whose errors are faults of ours: no test of what clients and workers do may cause any."""


@pytest.fixture(autouse=True)
def _records_hold_no_key_no_prompt_and_no_alarm(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Keys are in no record, neither as written nor before the formatter cuts them out."""
    caplog.set_level(logging.DEBUG, "inferd")
    yield
    formatter = JsonFormatter()
    for record in caplog.get_records("call"):
        told = f"{record.getMessage()} {vars(record)} {formatter.format(record)}"
        assert not any(secret in told for secret in Gateway.secrets), record.name
        assert not any(words in told for words in PROMPTS), record.name
        assert record.levelno < logging.ERROR or not record.name.startswith(ALARMS), told
