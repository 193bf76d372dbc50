"""How tests run: `async def` on virtual time, on uvloop when marked `real_time`; chance is seeded.

Fixtures are synchronous. What must be closed with an await is an async context manager that the
test itself enters, so that it opens and closes on the test's own loop.
"""

from __future__ import annotations

import functools
import inspect
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import hypothesis
import pytest

from tests.fakes.async_runner import run_real_time, run_virtual

REAL_TIME_LIMIT_S = 60.0
QUICK_EXAMPLES = 25

# The machine decides how long an example takes, not the code: no deadline. CI repeats itself.
hypothesis.settings.register_profile(
    "house",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
# For scripts/check, which is run at every commit: scripts/test then tries more of them.
hypothesis.settings.register_profile(
    "quick", hypothesis.settings.get_profile("house"), max_examples=QUICK_EXAMPLES
)
hypothesis.settings.load_profile("house")


class FixtureDefinition(Protocol):
    """The part of pytest's that is looked at here."""

    argname: str
    func: Callable[..., Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=2026, help="seed of the `rng` fixture")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('seed')}"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """The only source of chance in tests beside hypothesis; `--seed` varies it."""
    return random.Random(request.config.getoption("seed"))


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: FixtureDefinition) -> None:
    if inspect.iscoroutinefunction(fixturedef.func) or inspect.isasyncgenfunction(fixturedef.func):
        pytest.fail(
            f"{fixturedef.argname} is an async fixture: make it an async context manager",
            pytrace=False,
        )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Puts a synchronous function around an `async def` test; pytest then calls that."""
    run = _runner(pyfuncitem)
    # hypothesis calls the function inside its own wrapper once per example: one loop for each.
    property_test = getattr(pyfuncitem.obj, "hypothesis", None)
    if property_test is not None:
        if inspect.iscoroutinefunction(property_test.inner_test):
            property_test.inner_test = _synchronous(property_test.inner_test, run)
    elif inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = _synchronous(pyfuncitem.obj, run)


Run = Callable[[Callable[[], Awaitable[None]]], None]


def _runner(item: pytest.Function) -> Run:
    marker = item.get_closest_marker("real_time")
    if marker is None:
        return run_virtual
    return functools.partial(
        run_real_time, timeout_s=marker.kwargs.get("timeout_s", REAL_TIME_LIMIT_S)
    )


def _synchronous(test: Callable[..., Awaitable[None]], run: Run) -> Callable[..., None]:
    @functools.wraps(test)
    def call(*args: Any, **kwargs: Any) -> None:
        run(functools.partial(test, *args, **kwargs))

    return call
