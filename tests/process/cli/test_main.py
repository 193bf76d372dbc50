from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.inferd_process import Folder

HEAVY = {"aiohttp", "aiosqlite", "pydantic", "rich", "sqlite3", "starlette", "uvloop"}
WATCHED_HELP = """
import json, sys
sys.argv = ["inferd", "--help"]
from inferd.cli.main import main
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def test_the_first_screen_teaches_and_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED_HELP], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {module.partition(".")[0] for module in json.loads(done.stderr)}
    assert not loaded & HEAVY
    at = [done.stdout.index(f"  inferd {step}") for step in ("engine install", "init", "keys c")]
    at += [done.stdout.index(f"  inferd {step}") for step in ("serve", "chat")]
    assert at == sorted(at)
    assert all(len(line) <= 88 for line in done.stdout.splitlines())
    assert "\x1b" not in done.stdout


@pytest.mark.real_time
async def test_ctrl_c_is_quiet(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.attach("http://127.0.0.1:9")
    async with folder.started("status", "--watch", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert await process.stderr.read() == b""
        assert await process.wait() == 130


@pytest.mark.real_time
async def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.attach("http://127.0.0.1:9")
    async with folder.started("status", "--watch", "--json", "--interval", "0.1") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        await process.stdout.readline()
        process.stdout._transport.close()  # type: ignore[attr-defined]
        assert await process.stderr.read() == b""
        assert await process.wait() == 1
