"""How long `inferd usage` takes over a large ledger: millions of rows, made and summed first.

The rows are those of a month, of 20 teams, 40 keys and 3 models. The command runs as a process of
its own, start included. Exits with 1 if a question takes more
than 2 s of CPU: other programs on the machine only add to the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from inferd.clock import utc_now_us
from inferd.storage import rollup
from inferd.storage.database import Cursor, Database

BUDGET_S = 2.0
MONTH_US = 30 * 24 * 3_600 * 1_000_000
CONFIG = """
[server]
state_dir = "state"
[[models]]
name = "chat"
default_version = "1"
context_tokens_max = 4_096
output_tokens_max = 1_024
[[models.versions]]
version = "1"
attached = [{ url = "http://127.0.0.1:1" }]
"""
QUESTIONS = (
    ("usage", "--since", "31d"),
    ("usage", "--since", "31d", "--by", "team,key,model,version,priority"),
    ("usage", "--since", "31d", "--by", "day,model"),
    ("usage", "--since", "31d", "--by", "hour", "--team", "team-3"),
)
ROWS_AT_ONCE = 50_000
FILL = """
WITH RECURSIVE n (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :last)
INSERT INTO requests (request_id, ts_us, team, key_id, model, version, pool, priority, endpoint,
    stream, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, estimated,
    queue_wait_s, duration_s, attempts, outcome, cost_pico)
SELECT printf('req_%032d', i), :begins + i * :step, 'team-' || (i % 20), 'key-' || (i % 40),
    'chat-' || (i % 3), '1', 'chat@1', CASE i % 5 WHEN 0 THEN 'batch' ELSE 'interactive' END,
    '/v1/chat/completions', 1, 900 + i % 200, i % 900, i % 300, 0, 0, 0.1, 2.0, 1, 'completed',
    i * 1000 FROM n
"""


async def fill(folder: Path, rows: int) -> float:
    """Make the ledger, and sum it as the service does; seconds that the sums took."""
    async with Database.open(folder / "inferd.db") as db, asyncio.TaskGroup() as group:
        writer = group.create_task(db.run())
        begins = utc_now_us() - MONTH_US
        for first in range(0, rows, ROWS_AT_ONCE):
            last = min(first + ROWS_AT_ONCE, rows)
            given = {"first": first, "last": last, "begins": begins, "step": MONTH_US // rows}

            def insert(cursor: Cursor, given: dict[str, int] = given) -> None:
                cursor.execute(FILL, given)

            await db.write(insert)
        started = time.perf_counter()
        while await rollup.roll_up(db):
            pass
        spent = time.perf_counter() - started
        writer.cancel()
    return spent


def asked(folder: Path, question: tuple[str, ...]) -> tuple[float, float]:
    """Seconds and CPU seconds of one question, the process' start included; the least of three."""
    times, work = [], []
    for _ in range(3):
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "inferd", *question, "--config", str(folder / "inferd.toml")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        times.append(time.perf_counter() - started)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        work.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times), min(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the ledger")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "inferd.toml").write_text(CONFIG)
        (folder / "state").mkdir()
        summed_s = uvloop.run(fill(folder / "state", options.rows))
        found = {" ".join(question): asked(folder, question) for question in QUESTIONS}
    held = max(work for _, work in found.values()) <= BUDGET_S
    if options.json:
        print(json.dumps({"rows": options.rows, "summed_s": summed_s, **found, "held": held}))
    else:
        print(f"{options.rows:,} rows, summed in {summed_s:.1f} s")
        for question, (seconds, work) in found.items():
            print(f"inferd {question:60} {seconds:6.2f} s, {work:5.2f} s of CPU")
        print(f"budget: <= {BUDGET_S:g} s of CPU: {'held' if held else 'BROKEN'}")
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
