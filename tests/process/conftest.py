"""Real engines behind `inferd serve` that tests use one after the other: a start takes 20 s.

`plain_inferd` serves two layers of random weights. `whole_inferd` serves the demo model whole, with
adapters (of `adapters_table`) and an impatient watchdog. A test leaves it serving, or ends it:
the next one gets a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from scripts.soaks.faults import WATCHED
from tests.fakes.engines_left import none_left
from tests.fakes.lora_folder import adapters_table, make_adapter
from tests.fakes.served import ServeProcess, standing_served

LAYERS = 30
"""Of the demo model. Its weights are the real ones: the engine loads no adapter beside dummies."""
ADAPTERS = {"one": "a", "two": "b"}


class Serving:
    """Running inferds by kind; starts what is asked for and not there."""

    def __init__(self, stack: ExitStack, folders: pytest.TempPathFactory) -> None:
        self._stack = stack
        self._folders = folders
        self._running: dict[str, ServeProcess] = {}

    def get(self, kind: str) -> ServeProcess:
        known = self._running.get(kind)
        if known is None or known.process.poll() is not None:
            known = self._running[kind] = self._start(kind)
        return known

    def _start(self, kind: str) -> ServeProcess:
        folder = self._folders.mktemp(kind)
        self._stack.enter_context(none_left(folder))
        if kind == "plain":
            return self._stack.enter_context(standing_served(folder))
        for seed, name in enumerate(("a", "b", "c")):
            make_adapter(folder / name, seed, LAYERS)
        sections = WATCHED + adapters_table(**ADAPTERS)
        return self._stack.enter_context(standing_served(folder, dummy=False, sections=sections))


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with ExitStack() as stack:
        yield Serving(stack, tmp_path_factory)


@pytest.fixture
def plain_inferd(serving: Serving) -> ServeProcess:
    return serving.get("plain")


@pytest.fixture
def whole_inferd(serving: Serving) -> ServeProcess:
    return serving.get("whole")
