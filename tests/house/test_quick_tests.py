"""What scripts/check runs stays quick: tests in unit/ and paths/ start no process and no server."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house import repository

QUICK = ("tests/unit/", "tests/paths/")
STARTERS = {
    "asyncio.create_subprocess_exec",
    "asyncio.create_subprocess_shell",
    "asyncio.open_connection",
    "asyncio.start_server",
    "pty",
    "subprocess",
    "tests.fakes.engines.fake_engine",
    "tests.fakes.engines.launch_fake",
    "tests.fakes.engines.launch_real",
    "tests.fakes.engines.real_engine",
    "tests.fakes.gateway",
    "tests.fakes.inferd_process",
    "tests.fakes.scripted_api",
    "tests.fakes.served",
}


def starters(source: str) -> Iterator[str]:
    """What is imported or called here that starts something."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = [f"{node.value.id}.{node.attr}"]
        yield from (name for name in names if name in STARTERS)


def test_quick_tests_start_nothing() -> None:
    found = [
        f"{path}: {name} belongs into tests/process or tests/http"
        for path in repository.python_files()
        if path.startswith(QUICK)
        for name in starters(repository.read(path))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess\n",
        "from subprocess import run\n",
        "from tests.fakes import served\n",
        "from tests.fakes.engines import fake_engine, free_port\n",
        "import asyncio\nasyncio.start_server(print)\n",
    ],
)
def test_what_starts_something_is_found(source: str) -> None:
    assert list(starters(source))


def test_what_starts_nothing_is_not() -> None:
    assert not list(starters("import socket\nfrom tests.fakes.engines import free_port\n"))
