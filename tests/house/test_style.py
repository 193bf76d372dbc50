"""Every Python file keeps the style guide, and every rule of it is shown to bite."""

from __future__ import annotations

import textwrap

import pytest

from tests.house import repository
from tests.house.rules import complaints


def test_every_python_file_keeps_the_rules() -> None:
    found = [
        complaint
        for path in repository.python_files()
        for complaint in complaints(repository.read(path), path)
    ]
    assert not found, "\n".join(found)


DOC = '"""Module."""\n'

BAD = [
    ("syntax", "x = 1 if 2\n"),
    ("module size", DOC + "x = 1\n" * 400),
    ("function size", DOC + "def f():\n" + "    x = 1\n" * 60),
    ("async method size", DOC + "class A:\n    async def f():\n" + "        x = 1\n" * 60),
    ("banner", DOC + "# ---------- part two\n"),
    ("banner", DOC + "    # ==== part two ====\n"),
    ("no docstring", "x = 1\n"),
    ("long docstring", '"""A\n\n' + "line\n" * 8 + '"""\n'),
    ("function name", DOC + "def request_helper(): ...\n"),
    ("class name", DOC + "class WorkerManager: ...\n"),
    ("create_task", DOC + "import asyncio\nasyncio.create_task(f())\n"),
    ("create_task by import", DOC + "from asyncio import create_task\n"),
    (
        "create_task of a loop",
        DOC + "import asyncio\nasyncio.get_running_loop().create_task(f())\n",
    ),
    ("create_task of a loop kept", DOC + "self._loop.create_task(f())\n"),
    ("lock", DOC + "import asyncio as aio\nlock = aio.Lock()\n"),
    ("wait_for", DOC + "import asyncio\nasync def f(): await asyncio.wait_for(g(), 1)\n"),
    ("gather", DOC + "from asyncio import gather as both\n"),
    ("time.time", DOC + "import time\nnow = time.time()\n"),
    ("time.time_ns", DOC + "import time\nnow = time.time_ns()\n"),
    ("time.monotonic", DOC + "from time import monotonic\n"),
    ("time.sleep", DOC + "import time\ntime.sleep(1)\n"),
    ("datetime.now", DOC + "from datetime import datetime\ndatetime.now()\n"),
    ("datetime.now in full", DOC + "import datetime\ndatetime.datetime.now()\n"),
    ("utcnow", DOC + "import datetime as dt\ndt.datetime.utcnow()\n"),
    ("print", DOC + "print('x')\n"),
    ("blocking http", DOC + "import urllib.request\n"),
    ("blocking http", DOC + "from urllib import request\n"),
    ("blocking http", DOC + "import requests\n"),
    ("blocking http", DOC + "from http.client import HTTPConnection\n"),
    ("base middleware", DOC + "from starlette.middleware.base import BaseHTTPMiddleware\n"),
    ("thread", DOC + "import threading\nthreading.Thread(target=f)\n"),
    ("thread pool", DOC + "from concurrent.futures import ThreadPoolExecutor\n"),
    ("module random", DOC + "import random\nrandom.choice([1])\n"),
    ("sqlite outside storage", DOC + "import sqlite3\n"),
    ("httptools outside upstream", DOC + "from httptools import HttpResponseParser\n"),
]


@pytest.mark.parametrize(("what", "source"), BAD)
def test_what_is_forbidden_is_found(what: str, source: str) -> None:
    found = complaints(source, "inferd/part.py")
    assert len(found) >= 1, what
    assert all(complaint.startswith("inferd/part.py:") for complaint in found)


@pytest.mark.parametrize("path", ["inferd/utils.py", "inferd/common/state.py", "tests/misc.py"])
def test_file_names_that_say_nothing_are_found(path: str) -> None:
    assert complaints(DOC, path)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("inferd/clock.py", "from datetime import datetime\ndatetime.now()"),
        ("inferd/cli/status.py", "print('x')"),
        ("inferd/cli/admin.py", "import http.client"),
        ("inferd/storage/database.py", "import sqlite3"),
        ("inferd/upstream/wire.py", "import httptools"),
    ],
)
def test_exceptions_are_named_by_place(path: str, line: str) -> None:
    assert complaints(DOC + line + "\n", path) == []
    assert complaints(DOC + line + "\n", "inferd/elsewhere.py")


def test_tests_neither_sleep_nor_wait_for() -> None:
    assert complaints("import time\ntime.sleep(1)\n", "tests/unit/test_x.py")
    assert complaints("import time\nnow = time.time()\n", "tests/unit/test_x.py") == []


def test_good_code_is_left_alone() -> None:
    source = '''
        """Module."""

        import asyncio
        import random
        from datetime import UTC, datetime
        from urllib.parse import urlsplit

        # A comment -- with dashes -- is no banner.
        print_nothing = "time.time() asyncio.Lock print"


        async def run(rng: random.Random, print_width: int, at: datetime) -> None:
            async with asyncio.timeout_at(at.timestamp()), asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(rng.random()))
            urlsplit("http://x").hostname
            self.time.time()
            requests = random.Random()
            requests.choice([1])
        '''
    assert complaints(textwrap.dedent(source).lstrip(), "inferd/part.py") == []
