"""What a settled request costs the data path, and how many rows a second the writer sustains.

The settlement is the real one: bill, price, budget, row, metrics, and the hand-over to the writer.
Exits with 1 if a budget is broken (5 us a row, the least of seven turns; 10,000 rows written in a
second of CPU): other programs on the machine only add to both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import uvloop
from prometheus_client import CollectorRegistry

from inferd.clock import utc_now_us
from inferd.config.money import Budget, Prices
from inferd.config.schema import Model, Targets, Team
from inferd.config.version import AttachedWorker, Version
from inferd.inference import Endpoint, InferenceRequest, Priority, Usage, new_request_id
from inferd.metrics import Metrics
from inferd.quota.buckets import Buckets
from inferd.quota.budgets import Budgets
from inferd.quota.estimate import Estimator
from inferd.quota.prices import PriceList
from inferd.settlement import Ledger, Settlement
from inferd.storage import rollup
from inferd.storage.database import Database
from inferd.storage.usage import record

BUDGET_US = 5.0
ROWS_PER_S_MIN = 10_000.0
QUEUED_MAX = 20_000
USAGE = Usage(prompt_tokens=1_800, cached_tokens=1_024, completion_tokens=250)


def _ledger(db: Database) -> Ledger:
    version = Version(
        version="1",
        attached=(AttachedWorker(url="http://127.0.0.1:1"),),
        prices=Prices(input=0.15, cached_input=0.05, output=0.6),
    )
    model = Model(
        name="chat",
        default_version="1",
        context_tokens_max=32_768,
        output_tokens_max=4_096,
        versions=(version,),
    )
    team = Team(name="search", budget=Budget(money_per_month=1_000_000))
    now = asyncio.get_running_loop().time()
    return Ledger(
        buckets=Buckets([team], now),
        budgets=Budgets([team], "USD", utc_now_us()),
        prices=PriceList([model]),
        estimator=Estimator(),
        metrics=Metrics(CollectorRegistry()),
        targets_of=lambda _: Targets(),
        record=partial(record, db),
        record_unbilled=lambda _: None,
    )


def _request(loop: asyncio.AbstractEventLoop) -> InferenceRequest:
    return InferenceRequest(
        request_id=new_request_id(),
        team="search",
        key_id="key_1",
        endpoint=Endpoint.CHAT,
        model="chat",
        pool="chat@1",
        body={},
        prompt_bytes=7_000,
        prompt_tokens_estimated=1_800,
        output_tokens_max=4_096,
        output_tokens_given=True,
        choices=1,
        stream=True,
        include_usage=False,
        priority=Priority.INTERACTIVE,
        deadline=loop.time() + 600,
    )


class _Answer:
    def bill(self) -> Usage:
        return USAGE


async def settled(ledger: Ledger, count: int) -> tuple[float, float]:
    """Microseconds of a whole settlement, and of its end alone."""
    base = _request(asyncio.get_running_loop())
    requests = [replace(base, request_id=new_request_id()) for _ in range(count)]
    answer = _Answer()
    closing = 0.0
    started = time.perf_counter()
    for request in requests:
        settlement = ledger.open(request)
        settlement.__enter__()
        settlement.reserve()
        settlement.output_sent()
        settlement.output_sent()
        settlement.bill(answer)
        ending = time.perf_counter()
        settlement.__exit__(None, None, None)
        closing += time.perf_counter() - ending
    whole = time.perf_counter() - started
    return whole / count * 1e6, closing / count * 1e6


async def row_cost(db: Database, ledger: Ledger, count: int) -> float:
    """Microseconds that a row costs: made, priced, held against the budget, posted."""
    settlements = [await _ended(ledger) for _ in range(count)]
    started = time.perf_counter()
    for settlement in settlements:
        row = settlement._row()  # noqa: SLF001 - that step of it alone
        ledger.budgets.spend(row.team, USAGE.total_tokens, row.cost_pico, row.ts_us)
        record(db, row)
    return (time.perf_counter() - started) / count * 1e6


async def _ended(ledger: Ledger) -> Settlement:
    """One that has only its row to write."""
    request = replace(_request(asyncio.get_running_loop()), request_id=new_request_id())
    settlement = ledger.open(request)
    settlement.bill(_Answer())
    return settlement


async def written(db: Database, ledger: Ledger, count: int) -> tuple[float, float]:
    """Rows a second and their CPU in us, from the first post to the last commit; sums included."""
    row = (await _ended(ledger))._row()  # noqa: SLF001 - as above
    rows = [replace(row, request_id=new_request_id()) for _ in range(count)]
    started, worked = time.perf_counter(), time.process_time()
    for number, one in enumerate(rows):
        record(db, one)
        if number % 1_000 == 0:
            await asyncio.sleep(0)
        if db.queued > QUEUED_MAX:
            await db.flush()
    await db.flush()
    cpu_us = (time.process_time() - worked) / count * 1e6
    return count / (time.perf_counter() - started), cpu_us


async def measure(rows: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        async with Database.open(Path(folder) / "inferd.db") as db, asyncio.TaskGroup() as group:
            writer = group.create_task(db.run())
            keeper = group.create_task(rollup.keep(db, lambda: 90))
            ledger = _ledger(db)
            await settled(ledger, 500)
            await db.flush()
            turns, posts = [], []
            for _ in range(7):
                turns.append(await settled(ledger, 500))
                await db.flush()
                posts.append(await row_cost(db, ledger, 500))
                await db.flush()
            rate, cpu_us = await written(db, ledger, rows)
            keeper.cancel()
            writer.cancel()
    return {
        "settlement_us": statistics.median(whole for whole, _ in turns),
        "settlement_end_us": statistics.median(end for _, end in turns),
        "row_us": min(posts),
        "rows_per_s": rate,
        "row_written_cpu_us": cpu_us,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="how many the writer is given")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = uvloop.run(measure(options.rows))
    held = found["row_us"] <= BUDGET_US and 1e6 / found["row_written_cpu_us"] >= ROWS_PER_S_MIN
    if options.json:
        print(json.dumps({**found, "held": held}))
    else:
        print(f"a whole settlement, entered to left     {found['settlement_us']:8.1f} us")
        print(f"its end: bill, price, row, metrics      {found['settlement_end_us']:8.1f} us")
        print(f"the ledger's row: made, priced, posted  {found['row_us']:8.1f} us")
        print(f"rows written, sums kept beside          {found['rows_per_s']:8,.0f} rows/s")
        print(f"CPU of a row in the writer, with sums   {found['row_written_cpu_us']:8.1f} us")
        print(f"budgets: <= {BUDGET_US:g} us a row, >= {ROWS_PER_S_MIN:,.0f} rows/s:", end=" ")
        print("held" if held else "BROKEN")
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
