"""A fake engine's life: load, serve, drain on SIGTERM in the real one's poll steps, exit.

Log lines go to stderr in the real format, so that whatever follows a worker's output sees the
same words.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from tests.fake_engine.engine import Engine
from tests.fake_engine.faults import Fault, FaultBook
from tests.fake_engine.options import Options, parse
from tests.fake_engine.routes import Routes
from tests.fake_engine.wire import Server

DRAIN_POLL_S = 5.0
DEATH_AFTER_SCHEDULER_S = 6.3
_LOAD_LINES = 10
_PART = "import sys; sys.stdin.read()"
_ORPHAN = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep({})"


def log(line: str) -> None:
    """One line of the engine's log."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    sys.stderr.write(f"[{stamp}] {line}\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """Run until drained; the exit code is the process's."""
    options = parse(arguments)
    book = FaultBook()
    for spec in options.faults:
        book.arm(spec)
    failure = _exit_at_start(book.find("exit_at_start"))
    if failure is not None:
        return failure
    if orphan := book.find("orphan"):
        _leave_child(orphan)
    if parts := book.find("parts"):
        _start_parts(parts.count("count"))
    return uvloop.run(_serve(options, book))


def _exit_at_start(fault: Fault | None) -> int | None:
    if fault is None:
        return None
    counter = fault.text("counter", "")
    starts = 1
    if counter:
        path = Path(counter)
        starts += int(path.read_text()) if path.exists() else 0
        path.write_text(str(starts))
    if fault.times is not None and starts > fault.times:
        return None
    log(fault.text("message", "RuntimeError: Not enough memory. Please try --mem-fraction-static"))
    return fault.count("code", 1)


def _leave_child(fault: Fault) -> None:
    seconds = fault.number("seconds", 60)
    child = subprocess.Popen([sys.executable, "-c", _ORPHAN.format(seconds)])
    log(f"started child {child.pid}")


def _start_parts(count: int) -> None:
    """Children that end with us: nobody else can write to what they read."""
    for number in range(count):
        subprocess.Popen(
            [f"sglang::scheduler_TP{number}", "-c", _PART],
            executable=sys.executable,
            stdin=subprocess.PIPE,
        )


async def _load(options: Options, slow: Fault | None) -> None:
    log(f"server_args={' '.join(options.arguments)}")
    log("Load weight begin. avail mem=20.75 GB")
    seconds = options.scaled(options.load_seconds)
    told = True
    if slow is not None:
        seconds, told = slow.number("seconds"), slow.flag("progress")
    for part in range(_LOAD_LINES):
        if told and seconds:
            log(f"Loading safetensors checkpoint shards: {part * 100 // _LOAD_LINES}% Completed")
        await asyncio.sleep(seconds / _LOAD_LINES)
    log("Load weight end. type=LlamaForCausalLM, mem usage=0.24 GB.")


async def _serve(options: Options, book: FaultBook) -> int:
    await _load(options, book.find("slow_load"))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with asyncio.TaskGroup() as tasks:
        engine = Engine(options, tasks, book)
        scheduler = tasks.create_task(engine.scheduler.run())
        death = tasks.create_task(_watch_for_death(engine))
        server = Server(tasks, Routes(engine))
        listener = await server.listen(options.host, options.port)
        rooms = await engine.split.listen()
        log(f"Uvicorn running on http://{options.host}:{options.port} (Press CTRL+C to quit)")
        await asyncio.sleep(options.scaled(options.ready_seconds))
        engine.started = True
        log("The server is fired up and ready to roll!")
        await _drained(engine, stop)
        listener.close()
        if rooms is not None:
            rooms.close()
        scheduler.cancel()
        death.cancel()
        for connection in list(server.connections):
            connection.transport.abort()
    return 0


async def _drained(engine: Engine, stop: asyncio.Event) -> None:
    """Until a signal came and nothing is left, looking every few seconds as the real one does."""
    poll = engine.options.scaled(DRAIN_POLL_S)
    await stop.wait()
    engine.draining = True
    log("SIGTERM received. signum=15. Draining requests and shutting down...")
    await asyncio.sleep(poll)
    while engine.live:
        log(f"Gracefully exiting... Remaining number of requests {len(engine.live)}.")
        await asyncio.sleep(poll)
    log("Gracefully exiting... Remaining number of requests 0.")


async def _watch_for_death(engine: Engine) -> None:
    """The real parent sees a dead scheduler, sleeps, then kills itself."""
    await engine.faults.fatal.wait()
    engine.refreeze()
    await asyncio.sleep(engine.options.scaled(DEATH_AFTER_SCHEDULER_S))
    os.kill(os.getpid(), signal.SIGKILL)
