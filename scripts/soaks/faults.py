"""Each fault that an engine can have, on the real one: what clients are told, and how soon.

A stream is running whenever something is done to the engine. Exits with 1 at the first fault that
is not noticed in time, told to the client, explained in the worker's reason and survived.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from inferd.clock import monotonic
from tests.fakes.served import MODEL, Served, served, session_of

SILENCE_S: Final = 3.0
LONG_PROMPT_TOKENS: Final = 3_900
"""Of the model's 4,096."""
TOLD_S_MAX: Final = 2.0
"""Clients of a dead worker hear of it within this time."""
LIMITS: Final = """
[models.versions.watchdog]
silence_s = {silence_s}
unanswered_s = 10
"""
WATCHED: Final = LIMITS.format(silence_s=SILENCE_S)
IN_A_NAMESPACE: Final = "INFERD_SOAK_MAY_MOUNT"
DISK_BYTES: Final = 4_194_304


@dataclass(frozen=True, slots=True)
class Told:
    """How a request ended: its last event or status, and when."""

    after_s: float
    code: str
    events: int
    reason: str
    """Why the worker was given up."""


async def one_stream(inferd: Served, begun: asyncio.Event) -> tuple[str, int]:
    """A long stream; the code of its error, or `done`, and its events."""
    headers = {"Authorization": f"Bearer {inferd.key}"}
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count to ten thousand."}],
        "max_tokens": 2_000,
        "ignore_eos": True,
        "stream": True,
    }
    events, code = 0, "the stream just ended"
    url = f"{inferd.base_url}/chat/completions"
    async with inferd.http.post(url, json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if not line.startswith(b"data: "):
                continue
            events += 1
            if events == 3:
                begun.set()
            if line.startswith(b"data: [DONE]"):
                code = "done"
            elif b'"error"' in line:
                code = json.loads(line[6:])["error"]["code"]
    return code, events


async def one_answer(inferd: Served, content: str, max_tokens: int = 4) -> tuple[int, Any]:
    """Status and body of a whole answer."""
    headers = {"Authorization": f"Bearer {inferd.key}"}
    messages = [{"role": "user", "content": content}]
    body = {"model": MODEL, "messages": messages, "max_tokens": max_tokens}
    url = f"{inferd.base_url}/chat/completions"
    async with inferd.http.post(url, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def struck(inferd: Served, strike: Callable[[int], None], within_s: float) -> Told:
    """Strike the worker in the middle of a stream: told in time, explained, and replaced soon."""
    leader: int = (await inferd.until_ready())["pid"]
    begun = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        stream = group.create_task(one_stream(inferd, begun))
        await begun.wait()
        began = monotonic()
        strike(leader)
        code, events = await stream
    told_s = monotonic() - began
    assert code == "worker_unavailable", code
    assert told_s < within_s, f"told after {told_s:.1f} s"
    worker = await inferd.worker()
    while worker["state"] == "ready":
        worker = await inferd.worker()
    async with asyncio.timeout(20):
        while session_of(leader):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return Told(told_s, code, events, reason_in(inferd))


def reason_in(inferd: Served) -> str:
    """Why the last worker failed, from the server's log."""
    failed = [line for line in inferd.log.splitlines() if " is failed: " in line]
    return str(json.loads(failed[-1])["msg"]).partition(" is failed: ")[2]


def part(leader: int, name: str) -> int:
    """The process of the engine that calls itself so."""
    for pid in session_of(leader):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(f"sglang::{name}".encode()):
                return pid
    raise AssertionError(f"the engine has no process sglang::{name}")


async def long_prompt(inferd: Served) -> str:
    """A prompt near the context limit, with hardly any silence allowed: expected, so no hang."""
    config = inferd.folder / "inferd.toml"
    text = config.read_text()
    config.write_text(text.replace(f"silence_s = {SILENCE_S}", "silence_s = 0.5"))
    inferd.signal(signal.SIGHUP)
    before = await inferd.until_ready()
    began = monotonic()
    status, body = await one_answer(inferd, "word " * (LONG_PROMPT_TOKENS - 60))
    took_s = monotonic() - began
    assert status == 200, body
    tokens = body["usage"]["prompt_tokens"]
    assert (await inferd.worker())["pid"] == before["pid"], "it was taken for a hang"
    config.write_text(text)
    inferd.signal(signal.SIGHUP)
    return f"{tokens} tokens took {took_s:.1f} s to the answer"


async def kill_scheduler(inferd: Served) -> str:
    """SIGKILL to the scheduler: seconds before the engine itself would end."""
    told = await struck(
        inferd, lambda leader: os.kill(part(leader, "scheduler"), signal.SIGKILL), TOLD_S_MAX
    )
    assert "scheduler" in told.reason, told.reason
    return f"told after {told.after_s:.2f} s: {told.reason}"


async def kill_detokenizer(inferd: Served) -> str:
    """SIGKILL to the detokenizer: the scheduler goes on computing for nobody."""
    told = await struck(
        inferd, lambda leader: os.kill(part(leader, "detokenizer"), signal.SIGKILL), TOLD_S_MAX
    )
    assert "sglang::detokenizer" in told.reason, told.reason
    return f"told after {told.after_s:.2f} s: {told.reason}"


async def kill_parent(inferd: Served) -> str:
    """SIGKILL to the process that speaks HTTP."""
    told = await struck(inferd, lambda leader: os.kill(leader, signal.SIGKILL), TOLD_S_MAX)
    assert "SIGKILL" in told.reason, told.reason
    return f"told after {told.after_s:.2f} s: {told.reason}"


async def stop_scheduler(inferd: Served) -> str:
    """SIGSTOP to the scheduler: HTTP and probes go on, tokens do not."""
    told = await struck(
        inferd, lambda leader: os.kill(part(leader, "scheduler"), signal.SIGSTOP), SILENCE_S + 3
    )
    assert "sglang::scheduler" in told.reason, told.reason
    return f"told after {told.after_s:.2f} s: {told.reason}"


async def stop_everything(inferd: Served) -> str:
    """SIGSTOP to every process of the engine: nothing answers, nothing ends."""

    def strike(leader: int) -> None:
        for pid in session_of(leader):
            os.kill(pid, signal.SIGSTOP)

    told = await struck(inferd, strike, SILENCE_S + 3)
    return f"told after {told.after_s:.2f} s: {told.reason}"


async def full_disk(inferd: Served) -> str:
    """No room for the engine's output: it serves on, cannot start anew, and can with room again."""
    folder = inferd.folder / "state" / "workers"
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4_096):
            pass
    leader = (await inferd.until_ready())["pid"]
    status, body = await one_answer(inferd, "Is there room?")
    assert status == 200, body
    os.kill(leader, signal.SIGKILL)
    async with asyncio.timeout(60):
        while "No space left" not in (await inferd.worker())["reason"]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    refused, _ = await one_answer(inferd, "Is there still?")
    assert refused == 503
    reason = (await inferd.worker())["reason"]
    filler.unlink()
    await inferd.until_ready(but_not=leader)
    status, body = await one_answer(inferd, "And now?")
    assert status == 200, body
    return f"answered with a full disk; killed: {reason}; served again with room"


FAULTS: Final[dict[str, Callable[[Served], Awaitable[str]]]] = {
    "long prompt": long_prompt,
    "kill scheduler": kill_scheduler,
    "kill detokenizer": kill_detokenizer,
    "kill parent": kill_parent,
    "stop scheduler": stop_scheduler,
    "stop everything": stop_everything,
    "full disk": full_disk,
}


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A disk of a few megabytes for the workers' folders, where this process may have one."""
    if not os.environ.get(IN_A_NAMESPACE):
        yield
        return
    disk = folder / "state" / "workers"
    disk.mkdir(parents=True)
    size = f"size={DISK_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", disk], check=True)


async def strike_all(folder: Path, names: list[str]) -> None:
    """One engine after another, each fault on a fresh one."""
    async with served(folder, dummy=False, sections=WATCHED) as inferd:
        for name in names:
            began = monotonic()
            print(f"{name}: {await FAULTS[name](inferd)}", flush=True)
            if name == names[-1]:
                break
            await inferd.until_ready()
            print(f"  serving again {monotonic() - began:.1f} s after it began", flush=True)
        inferd.signal(signal.SIGTERM)
        assert await inferd.ended() == 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/soak faults", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of: {', '.join(FAULTS)}; all unless given")
    names = parser.parse_args().names or list(FAULTS)
    if unknown := set(names) - set(FAULTS):
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    if "full disk" in names and not os.environ.get(IN_A_NAMESPACE):
        unshare = shutil.which("unshare")
        assert unshare, "a disk of its own takes `unshare` of util-linux: name the other faults"
        environment = {**os.environ, IN_A_NAMESPACE: "1"}
        program = [sys.executable, "-m", "scripts.soaks.faults", *names]
        command = [unshare, "--user", "--map-root-user", "--mount", *program]
        return subprocess.run(command, env=environment, check=False).returncode
    with tempfile.TemporaryDirectory() as temporary, small_disk(Path(temporary)):
        uvloop.run(strike_all(Path(temporary), names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
