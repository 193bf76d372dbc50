"""How large the dashboard's pages are and how soon they come, over a ledger of a million rows.

A gateway of its own answers; each page is asked for after a login, once to warm it and then nine
times. Exits with 1 if a page is larger than 150 KB or its median takes more than 200 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import uvloop

from scripts.benchmarks.usage import CONFIG, fill

BYTES_MAX = 150_000
SECONDS_MAX = 0.2
TURNS = 9
LISTEN = '[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"'
TEAMS = "".join(f'[[teams]]\nname = "team-{n}"\n' for n in range(20))
PAGES = (
    "",
    "usage",
    "usage?by=model&days=31",
    "requests",
    "keys",
    "audit",
    "batches",
    "playground",
)
ADDRESS = re.compile(r"admin API at (http://[\d.]+:\d+)\)")


async def pages(folder: Path) -> dict[str, tuple[int, float]]:
    """Bytes and median seconds of each page."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "inferd", "serve", "--config", str(folder / "inferd.toml")),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        while not (found := ADDRESS.search((await process.stdout.readline()).decode())):
            assert not process.stdout.at_eof(), "inferd has ended"
        key = (folder / "state" / "admin.key").read_text().strip()
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as http:
            async with http.post(f"{found[1]}/dashboard/login", data={"admin_key": key}) as answer:
                assert answer.status == 200, answer.status
            return {
                page: await asked(http, f"{found[1]}/dashboard/{page}".rstrip("/"))
                for page in PAGES
            }
    finally:
        process.terminate()
        await process.wait()


async def asked(http: aiohttp.ClientSession, url: str) -> tuple[int, float]:
    times, size = [], 0
    for _ in range(TURNS + 1):
        started = time.perf_counter()
        async with http.get(url) as answer:
            assert answer.status == 200, (url, answer.status)
            size = len(await answer.read())
        times.append(time.perf_counter() - started)
    return size, statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the ledger")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "inferd.toml").write_text(CONFIG.replace("[server]", LISTEN) + TEAMS)
        (folder / "state").mkdir()
        uvloop.run(fill(folder / "state", options.rows))
        found = uvloop.run(pages(folder))
    held = all(size <= BYTES_MAX and seconds <= SECONDS_MAX for size, seconds in found.values())
    if options.json:
        print(json.dumps({"rows": options.rows, "pages": found, "held": held}))
    else:
        for page, (size, seconds) in found.items():
            print(f"/dashboard/{page:24} {size / 1_000:7.1f} KB {seconds * 1_000:7.1f} ms")
        kb, ms = BYTES_MAX // 1_000, SECONDS_MAX * 1_000
        print(f"budget: <= {kb} KB, <= {ms:g} ms: {'held' if held else 'BROKEN'}")
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
