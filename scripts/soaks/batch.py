"""Batches under SIGKILL: every line ends once, is billed once, and says what it says without kills.

Each run makes a batch of requests that call tools and kills inferd at random moments. Results are
held against the ledger, the batch's own counts and, on the fake engine, those of a run that nobody
disturbed, byte for byte. `--real` takes the real engine; with `--kills 0` it asks interactive
questions beside. Exits with 1 if one figure is off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from inferd.cli.batch_client import ENDED, connected
from inferd.cli.chat_client import ApiError
from inferd.clock import monotonic
from scripts.soaks.batch_node import BatchNode, attached, batch_node, real_version, tool_lines
from tests.fakes.engines import fake_engine

ENDS_S_MAX = 600.0
QUESTION = "What is the capital of France?"
ASKED_IDLE = 12
ASK_EVERY_S = 2.0


@dataclass
class Outcome:
    """What one run came to."""

    seconds: float = 0.0
    kills: int = 0
    killed_in: Counter[str] = field(default_factory=Counter)
    """How often in which state of the batch."""
    problems: list[str] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    """What each line came to, without ids and times."""
    idle_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)
    """First tokens of interactive questions, before the batch and beside it."""


class BatchRun:
    """One batch on one node."""

    def __init__(self, node: BatchNode, lines: list[dict[str, Any]], chance: random.Random) -> None:
        self._node = node
        self._lines = lines
        self._chance = chance
        self._batch_id = ""
        self._status = "not made"
        self.outcome = Outcome()

    async def run(self, kills: int, *, within_s: float, asks: bool = False) -> Outcome:
        """The whole run; kills are `within_s` of the start before."""
        outcome = self.outcome
        began = monotonic()
        await self._node.start()
        if asks:
            await self._node.until_ready()
            for _ in range(ASKED_IDLE):
                outcome.idle_s.append(await self._ask())
        await self._create()
        for _ in range(kills):
            await asyncio.sleep(self._chance.uniform(0, within_s))
            if await self._look() in ENDED:
                break
            await self._node.kill()
            outcome.kills += 1
            outcome.killed_in[self._status] += 1
            await self._node.start()
        await self._until_ended(asks=asks)
        await self._judge()
        outcome.seconds = monotonic() - began
        return outcome

    async def _create(self) -> None:
        path = self._node.folder / "input.jsonl"
        data = "".join(json.dumps(line) + "\n" for line in self._lines)
        await asyncio.to_thread(path.write_text, data)
        async with connected(self._node.base_url, self._node.key) as client:
            file_id = await client.upload(path, lambda _: None)
            asked = {
                "input_file_id": file_id,
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            }
            self._batch_id = (await client.create(asked))["id"]

    async def _look(self) -> str:
        async with connected(self._node.base_url, self._node.key) as client:
            batch = await client.get(self._batch_id)
        self._status = batch["status"]
        return self._status

    async def _until_ended(self, *, asks: bool) -> None:
        async with asyncio.timeout(ENDS_S_MAX):
            while await self._look() not in ENDED:
                if asks:
                    try:
                        self.outcome.beside_s.append(await self._ask())
                    except (aiohttp.ClientError, ApiError) as error:
                        self.outcome.problems.append(f"an interactive request failed: {error}")
                await asyncio.sleep(ASK_EVERY_S if asks else 0.05)

    async def _ask(self) -> float:
        """Seconds to the first token of a short answer."""
        body = {
            "model": "chat",
            "messages": [{"role": "user", "content": QUESTION}],
            "max_completion_tokens": 8,
            "stream": True,
        }
        headers = {"authorization": f"Bearer {self._node.key}"}
        began = monotonic()
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(f"{self._node.base_url}/chat/completions", json=body) as answer,
        ):
            answer.raise_for_status()
            await answer.content.readany()
            first_s = monotonic() - began
            await answer.read()
        return first_s

    async def _judge(self) -> None:
        """Files, ledger and batch must say the same, of every line once."""
        async with connected(self._node.base_url, self._node.key) as client:
            batch = await client.get(self._batch_id)
            results = []
            for kind in ("output", "error"):
                if (file_id := batch[f"{kind}_file_id"]) is not None:
                    path = self._node.folder / f"{kind}.jsonl"
                    await client.download(file_id, path)
                    text = await asyncio.to_thread(path.read_text)
                    results += [(kind, json.loads(line)) for line in text.splitlines()]
        rows = {row.request_id: row for row in self._node.rows() if "batch_req" in row.request_id}
        self._judge_lines(batch, results)
        self._judge_bills(batch, results, rows)

    def _judge_lines(self, batch: dict[str, Any], results: list[tuple[str, Any]]) -> None:
        say = self.outcome.problems.append
        if batch["status"] != "completed":
            say(f"the batch is {batch['status']}")
        seen = Counter(line["custom_id"] for _, line in results)
        wanted = {line["custom_id"] for line in self._lines}
        if set(seen) != wanted or max(seen.values(), default=0) != 1:
            missing, twice = wanted - set(seen), [one for one, count in seen.items() if count > 1]
            say(f"lines missing: {sorted(missing)[:5]}, more than once: {twice[:5]}")
        if any(kind == "error" for kind, _ in results):
            first = next(line for kind, line in results if kind == "error")
            say(f"a line is in the error file: {json.dumps(first)[:300]}")
        for _, line in results:
            self.outcome.results[line["custom_id"]] = _bare(line)

    def _judge_bills(
        self, batch: dict[str, Any], results: list[tuple[str, Any]], rows: dict[str, Any]
    ) -> None:
        say = self.outcome.problems.append
        if set(rows) != {line["id"] for _, line in results}:
            say(f"{len(rows)} rows in the ledger, {len(results)} lines")
            return
        prompt = completion = 0
        for _, line in results:
            row, usage = rows[line["id"]], line["response"]["body"].get("usage", {})
            told = (usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0))
            if told != (row.prompt_tokens, row.completion_tokens):
                say(f"{line['custom_id']} says {told}, the ledger {row}")
            prompt += row.prompt_tokens
            completion += row.completion_tokens
        counted = (batch["usage"]["input_tokens"], batch["usage"]["output_tokens"])
        if counted != (prompt, completion):
            say(f"the batch counts {counted}, the ledger {(prompt, completion)}")
        counts = batch["request_counts"]
        if counts != {"total": len(results), "completed": len(results), "failed": 0}:
            say(f"the batch counts {counts}")


def _bare(line: dict[str, Any]) -> str:
    """A result without what differs from run to run: ids and times, and what a cache held."""
    body = json.loads(json.dumps(line["response"]["body"]))
    for key in ("id", "created"):
        body.pop(key, None)
    body.get("usage", {}).pop("prompt_tokens_details", None)
    for choice in body.get("choices", []):
        for call in choice["message"].get("tool_calls") or []:
            call.pop("id", None)
    return json.dumps([line["response"]["status_code"], body], sort_keys=True)


async def on_the_fake(args: argparse.Namespace, folder: Path) -> list[Outcome]:
    """One engine for all runs, which nothing happens to."""
    lines = tool_lines(args.lines)
    outcomes: list[Outcome] = []
    flags = ("--tool-call-parser", "qwen25", "--max-running-requests", "16")
    async with fake_engine(folder, *flags, model="chat", speed=args.speed) as engine:
        for number in range(args.runs + 1):
            home = folder / f"run-{number}"
            home.mkdir()
            kills = args.kills if number else 0
            chance = random.Random(args.seed + number)
            async with batch_node(home, attached(engine.base_url)) as node:
                run = BatchRun(node, lines, chance)
                outcome = await run.run(kills, within_s=args.within)
            if number and outcome.results != outcomes[0].results:
                outcome.problems.append("some results differ from those of the undisturbed run")
            outcomes.append(outcome)
            _tell(number, outcome, args)
    return outcomes


async def on_the_real(args: argparse.Namespace, folder: Path) -> list[Outcome]:
    lines = tool_lines(args.lines)
    outcomes = []
    for number in range(args.runs):
        home = folder / f"run-{number}"
        home.mkdir()
        async with batch_node(home, real_version()) as node:
            run = BatchRun(node, lines, random.Random(args.seed + number))
            outcomes.append(await run.run(args.kills, within_s=args.within, asks=not args.kills))
        _tell(number, outcomes[-1], args)
    return outcomes


def _tell(number: int, outcome: Outcome, args: argparse.Namespace) -> None:
    if not args.json:
        kills = dict(outcome.killed_in)
        said = "; ".join(outcome.problems[:3]) or "every line once, billed once"
        print(f"run {number}: {outcome.seconds:.1f} s, kills {kills}: {said}", flush=True)


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


def main() -> None:
    """Read the options, run, report."""
    parser = argparse.ArgumentParser(description=__doc__, prog="scripts/soak batch")
    parser.add_argument("--runs", type=int, help="default: 100 on the fake engine, 1 on the real")
    parser.add_argument("--kills", type=int, default=10, help="of inferd, in each run")
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--within", type=float, help="seconds from a start to the next kill")
    parser.add_argument("--speed", type=float, default=100.0, help="of the fake engine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", action="store_true", help="the real engine on the CPU")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.runs = args.runs or (1 if args.real else 100)
    args.within = args.within or (10.0 if args.real else 0.4)
    work = on_the_real if args.real else on_the_fake
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        outcomes = runner.run(work(args, Path(folder)))
    killed = sum((outcome.killed_in for outcome in outcomes), Counter())
    problems = [problem for outcome in outcomes for problem in outcome.problems]
    figures = {
        "runs": len(outcomes),
        "lines": args.lines,
        "kills": sum(outcome.kills for outcome in outcomes),
        "killed_in": dict(killed),
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
        "problems": len(problems),
    }
    if args.real and not args.kills:
        idle = _median([one for outcome in outcomes for one in outcome.idle_s])
        beside = _median([one for outcome in outcomes for one in outcome.beside_s])
        figures |= {"ttft_idle_s": idle, "ttft_beside_s": beside, "ratio": beside / idle}
    print(json.dumps(figures))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
