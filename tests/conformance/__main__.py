"""Runs the client suites that the world uses against inferd, and tells a table."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tests.conformance.install import CannotInstall, install, write_key, write_schemathesis_files
from tests.conformance.schemas import TABLE
from tests.conformance.suites import SUITES, Packages, Score, Suite
from tests.conformance.table import DOCUMENT, Rows, row, table, written
from tests.fakes.engines import REPOSITORY, EngineProcess, launch_fake, launch_real, standing
from tests.fakes.gateway import MODEL, Gateway, gateway, toml

HOME = REPOSITORY / ".inferd" / "conformance"
EMBEDDING_MODEL = "embed"
SUITE_S_MAX = 900
SHOWN_LINES = 25
SPEED = 50.0
# As inferd starts its own: a small model writes white space for ever where a grammar lets it.
COMPACT = ("--constrained-json-disable-any-whitespace",)
QUEUE = ("--max-queued-requests", "256")
# Names and limits that the suites of others have written into them.
CHAT = {
    "aliases": ["gpt-6-astra", "gpt-3.5-turbo-instruct"],
    "choices_max": 128,
    "reasoning": True,
    "vocabulary_tokens": 49_152,
    # Few of their requests bound their answers, and a real engine would write on and on.
    "defaults": {"output_tokens": 64},
}
SERVER = {"stall_s": 30.0, "body_timeout_s": 30.0, "request_deadline_s": 300.0}


def more_sections(engine: EngineProcess) -> str:
    """The second model, for embeddings, and what files are taken."""
    model = {
        "name": EMBEDDING_MODEL,
        "aliases": ["text-embedding-3-small"],
        "kind": "embedding",
        "default_version": "1",
        "context_tokens_max": 4_096,
        "vocabulary_tokens": 49_152,
    }
    version = {"version": "1", "attached": [{"url": engine.base_url, "inflight_max": 64}]}
    # The suites of others upload for assistants.
    files = '[files]\npurposes = ["assistants"]\n'
    return f"{files}[[models]]\n{toml(model)}[[models.versions]]\n{toml(version)}"


def environment(suite: Suite, folder: Path, inferd: Gateway, chat: EngineProcess) -> dict[str, str]:
    """What a suite's process is told."""
    inherited = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    return inherited | {
        "BASE_URL": f"{inferd.base_url}/v1",
        "TEST_API_BASE_URL": f"{inferd.base_url}/v1",
        "API_KEY": inferd.key,
        "MODEL": MODEL,
        "EMBEDDING_MODEL": EMBEDDING_MODEL,
        "ENGINE_KIND": chat.kind,
        "ENGINE_URL": chat.base_url,
        "PYTHONPATH": str(REPOSITORY if suite.packages is Packages.OURS else folder),
        "LLM_USER_PATH": str(folder / "llm-home"),
    }


async def run_suite(suite: Suite, inferd: Gateway, chat: EngineProcess) -> tuple[Score, str]:
    """Run one suite; its output is kept beside it."""
    folder = HOME / suite.name
    if suite.name == "schemathesis":
        write_schemathesis_files(folder, MODEL, EMBEDDING_MODEL)
    if suite.source is not None:
        write_key(folder, inferd.key)
    command = [part.format(root=inferd.base_url, key=inferd.key) for part in suite.command]
    if command[0].startswith("bin/"):
        command[0] = str(folder / command[0])
    told = folder / "output.txt"
    with told.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=environment(suite, folder, inferd, chat),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(SUITE_S_MAX):
                ended = f"it ended with {await process.wait()}"
        except TimeoutError:
            process.kill()
            await process.wait()
            ended = f"not done after {SUITE_S_MAX} s"
    output = told.read_text(encoding="utf-8", errors="replace").rstrip()
    score = suite.read(output)
    if process.returncode and not score.failed:  # it broke off: what it said before is not all
        score, output = replace(score, failed=1), f"{output}\n{ended}"
    return score, output


async def run(
    chosen: list[Suite], chat: EngineProcess, embed: EngineProcess
) -> tuple[Rows, dict[str, str], list[str]]:
    """Rows, tables of suites' own, and the names of those that found something."""
    rows: Rows = {}
    blocks: dict[str, str] = {}
    broken = []
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory() as folder:
        more = more_sections(embed)
        async with gateway(
            Path(folder), chat, slots=64, ready=2, server=SERVER, model=CHAT, more=more
        ) as inferd:
            for suite in chosen:
                started = loop.time()
                score, output = await run_suite(suite, inferd, chat)
                rows[suite.name, chat.kind] = told = row(suite, chat.kind, score)
                print(f"{told} {loop.time() - started:.0f} s", flush=True)
                if suite.block:
                    blocks[suite.block] = output.partition(TABLE)[2]
                if score.failed:
                    broken.append(suite.name)
                    print("\n".join(output.splitlines()[-SHOWN_LINES:]), flush=True)
    return rows, blocks, broken


def installed(chosen: list[Suite]) -> tuple[list[Suite], list[str]]:
    """Those that can run here, and the names of those that cannot, of which it is said why."""
    able, unable = [], []
    for suite in chosen:
        try:
            install(suite, HOME / suite.name)
            able.append(suite)
        except CannotInstall as error:
            print(f"{suite.name} did not run: {error}", flush=True)
            unable.append(suite.name)
    return able, unable


def choose(engine: str, names: list[str], *, quick: bool) -> list[Suite]:
    """In the order of the table. A quick run takes what is there: node may be missing."""
    node = shutil.which("npm") is not None
    chosen = [suite for suite in SUITES if engine in suite.engines]
    if names:
        return [suite for suite in chosen if suite.name in names]
    if not quick:
        return chosen
    if not node:
        print("there is no npm here: the suites of node are left out", flush=True)
    return [one for one in chosen if one.quick and (node or one.packages is not Packages.NPM)]


def main(arguments: list[str]) -> int:
    """0 when every suite ran and found nothing."""
    parser = argparse.ArgumentParser(prog="scripts/conformance", description=__doc__)
    parser.add_argument("--engine", choices=("fake", "real"), default="fake")
    parser.add_argument("--quick", action="store_true", help="those that scripts/test runs")
    parser.add_argument("--write", action="store_true", help="the table into docs/compatibility.md")
    names = [suite.name for suite in SUITES]
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(names))
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.suites) - set(names)):
        parser.error(f"no suite {', '.join(unknown)}; there are {', '.join(names)}")
    chosen, unable = installed(choose(asked.engine, asked.suites, quick=asked.quick))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if asked.engine == "real":
            chat = launch_real(Path(folder), *COMPACT, model=MODEL, dummy=False)
        else:
            chat = launch_fake(Path(folder), *QUEUE, model=MODEL, speed=SPEED)
        embed = launch_fake(Path(folder), "--is-embedding", model=EMBEDDING_MODEL, speed=SPEED)
        engines = [stack.enter_context(standing(one)) for one in (chat, embed)]
        rows, blocks, broken = asyncio.run(run(chosen, *engines))
    print(f"\n{table(rows)}")
    if asked.write:
        DOCUMENT.write_text(written(DOCUMENT.read_text("utf-8"), rows, blocks), encoding="utf-8")
    if wrong := [*unable, *broken]:
        print(f"not well: {', '.join(wrong)}; what they said is in {HOME}/SUITE/output.txt")
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
