"""Batches under SIGKILL and power cuts: every line ends once, is billed once, and says the same.

Each run makes a batch of requests that call tools. At random moments it kills inferd, or a worker,
or both and cuts the database's log and the spools anywhere. Results are held against the ledger,
the batch's own counts and, on the fake engine, those of a run that nobody disturbed, byte for byte.
`--real` takes the real engine; without kills interactive questions are asked beside it. Exits with
1 if one figure is off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from inferd.cli.batch_client import ENDED, connected
from inferd.cli.chat_client import ApiError
from inferd.clock import monotonic
from scripts.soaks.batch_node import BatchNode, tool_lines
from scripts.soaks.chaos_node import chaos_node

INFERD, POWER, WORKER, STOP = "inferd", "power", "worker", "stop"
"""What is ended: inferd alone, everything with what was not synced, one worker; inferd as asked."""
QUESTION = "What is the capital of France?"
ASKED_IDLE = 12
ASK_EVERY_S = 2.0


@dataclass
class Outcome:
    """What one run came to."""

    seconds: float = 0.0
    acts: Counter[str] = field(default_factory=Counter)
    """What was killed, how often."""
    killed_in: Counter[str] = field(default_factory=Counter)
    """How often inferd, in which state of the batch."""
    cuts: list[list[str]] = field(default_factory=list)
    """What each power cut has cut."""
    problems: list[str] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    """What each line came to, without ids and times."""
    idle_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)
    """First tokens of interactive questions, before the batch and beside it."""


class BatchRun:
    """One batch on one node."""

    def __init__(
        self, node: BatchNode, lines: list[dict[str, Any]], chance: random.Random, ends_s: float
    ) -> None:
        """`ends_s`: seconds that the batch may still take after the last kill."""
        self._node = node
        self._ends_s = ends_s
        self._lines = lines
        self._chance = chance
        self._batch_id = ""
        self._status = "not made"
        self.outcome = Outcome()

    async def run(self, acts: Sequence[str], *, within_s: float, asks: bool = False) -> Outcome:
        """The whole run; each act is `within_s` of the start before."""
        outcome = self.outcome
        began = monotonic()
        await self._node.start()
        if asks:
            await self._node.until_ready()
            for _ in range(ASKED_IDLE):
                outcome.idle_s.append(await self._ask())
        await self._create()
        for act in acts:
            await asyncio.sleep(self._chance.uniform(0, within_s))
            if await self._look() in ENDED:
                break
            await self._do(act)
        await self._until_ended(asks=asks)
        await self._judge()
        outcome.seconds = monotonic() - began
        return outcome

    async def _do(self, act: str) -> None:
        self.outcome.acts[act] += 1
        if act == WORKER:
            await self._node.kill_worker(self._chance)
            return
        self.outcome.killed_in[self._status] += 1
        if act == STOP:
            if code := await self._node.stop():
                self.outcome.problems.append(f"inferd stopped with code {code}")
        elif act == POWER:
            self.outcome.cuts.append(await self._node.cut_power(self._chance))
        else:
            await self._node.kill()
        await self._node.start()

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
        await asyncio.to_thread(self._node.log.answered)

    async def _look(self) -> str:
        async with connected(self._node.base_url, self._node.key) as client:
            batch = await client.get(self._batch_id)
        self._status = batch["status"]
        return self._status

    async def _until_ended(self, *, asks: bool) -> None:
        async with asyncio.timeout(self._ends_s):
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
                    try:
                        results += [(kind, json.loads(line)) for line in text.splitlines()]
                    except json.JSONDecodeError as error:
                        self.outcome.problems.append(f"the {kind} file is torn: {error}")
        rows = await asyncio.to_thread(self._node.rows_of_batch)
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


def acts_of(args: argparse.Namespace, chance: random.Random) -> list[str]:
    """What is done in one run: `kills` ends of inferd, power cuts among them, and of workers."""
    inferd = args.kills - args.power_cuts
    acts = [INFERD] * inferd + [POWER] * args.power_cuts
    acts += [WORKER] * args.worker_kills + [STOP] * args.stops
    chance.shuffle(acts)
    return acts


async def one_run(args: argparse.Namespace, folder: Path, number: int) -> Outcome:
    """On a node of its own. Number 0 is undisturbed."""
    home = folder / f"run-{number}"
    await asyncio.to_thread(home.mkdir)
    chance = random.Random(args.seed + number)
    acts = acts_of(args, chance) if number else []
    async with chaos_node(
        home, real=args.real, workers=args.workers, speed=args.speed, kind=BatchNode
    ) as node:
        if args.random_weights:
            node.random_weights = True
            node.write_config()
        run = BatchRun(node, tool_lines(args.lines), chance, 60.0 * args.minutes)
        outcome = await run.run(acts, within_s=args.within, asks=args.real and not acts)
    if outcome.problems and args.keep is not None:
        await asyncio.to_thread(shutil.copytree, home, args.keep / home.name)
    await asyncio.to_thread(shutil.rmtree, home)
    return outcome


async def all_runs(args: argparse.Namespace, folder: Path) -> list[Outcome]:
    """On the fake engine an undisturbed run goes first, and the others must come to the same."""
    outcomes: list[Outcome] = []
    if not args.real:
        outcomes.append(await one_run(args, folder, 0))
        _tell(0, outcomes[0], args)
    slots = asyncio.Semaphore(args.at_once)

    async def compared(number: int) -> None:
        async with slots:
            outcome = await one_run(args, folder, number)
        if not args.real and outcome.results != outcomes[0].results:
            outcome.problems.append("some results differ from those of the undisturbed run")
        outcomes.append(outcome)
        _tell(number, outcome, args)

    async with asyncio.TaskGroup() as group:
        for number in range(1, args.runs + 1):
            group.create_task(compared(number))
    return outcomes


def _tell(number: int, outcome: Outcome, args: argparse.Namespace) -> None:
    if not args.json:
        done, states = dict(outcome.acts), dict(outcome.killed_in)
        said = "; ".join(outcome.problems[:3]) or "every line once, billed once"
        print(f"run {number}: {outcome.seconds:.1f} s, {done} in {states}: {said}", flush=True)


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


def main() -> None:
    """Read the options, run, report."""
    parser = argparse.ArgumentParser(description=__doc__, prog="scripts/soak batch")
    parser.add_argument("--runs", type=int, help="default: 100 on the fake engine, 1 on the real")
    parser.add_argument("--kills", type=int, default=10, help="of inferd, in each run")
    parser.add_argument("--power-cuts", type=int, help="of these; default: 3, 0 on the real engine")
    parser.add_argument("--worker-kills", type=int, default=2, help="besides, in each run")
    parser.add_argument("--stops", type=int, default=1, help="SIGTERM to inferd, besides")
    parser.add_argument("--workers", type=int, help="default: 2, 1 on the real engine")
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--within", type=float, help="seconds from a start to the next kill")
    parser.add_argument("--speed", type=float, default=100.0, help="of the fake engine")
    parser.add_argument("--at-once", type=int, default=1, help="runs, each with its own inferd")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", action="store_true", help="the real engine on the CPU")
    parser.add_argument("--random-weights", action="store_true", help="two quick layers of them")
    parser.add_argument("--minutes", type=float, default=10.0, help="to the end of each batch")
    parser.add_argument("--keep", type=Path, help="a folder for what runs with problems have left")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.runs = args.runs or (1 if args.real else 100)
    args.workers = args.workers or (1 if args.real else 2)
    args.within = args.within or (10.0 if args.real else 0.4)
    if args.power_cuts is None:
        args.power_cuts = 0 if args.real else min(3, args.kills)
    if args.random_weights and not args.real:
        parser.error("--random-weights goes with --real")
    if args.power_cuts > args.kills:
        parser.error("power cuts are kills of inferd: there cannot be more of them")
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        outcomes = runner.run(all_runs(args, Path(folder)))
    problems = [problem for outcome in outcomes for problem in outcome.problems]
    figures = {
        "runs": len(outcomes),
        "lines": args.lines,
        "acts": dict(sum((outcome.acts for outcome in outcomes), Counter())),
        "killed_in": dict(sum((outcome.killed_in for outcome in outcomes), Counter())),
        "files_cut": sum(len(cut) for outcome in outcomes for cut in outcome.cuts),
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
        "problems": len(problems),
    }
    beside_s = [one for outcome in outcomes for one in outcome.beside_s]
    if beside_s:
        idle = _median([one for outcome in outcomes for one in outcome.idle_s])
        beside = _median(beside_s)
        figures |= {"ttft_idle_s": idle, "ttft_beside_s": beside, "ratio": beside / idle}
    print(json.dumps(figures))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
